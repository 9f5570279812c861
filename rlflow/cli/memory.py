"""The command `memory`: find an order of nodes and session options with which a model needs less memory."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rlflow.cli.command import (
    add_command,
    add_custom_ops,
    add_inputs,
    add_sizes,
    add_threads,
    ending,
    input_words,
    threads_of,
)
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.common.messages import counted, shape_words

TEXT = "reduce the memory of a model by the order of its nodes and by session options"
PAGE = """\
Reduces the memory that a model needs while it runs. The order of its nodes decides how many intermediate results exist
at a time; session options decide how the memory for them is allocated.

    %(prog)s MODEL.onnx --out SMALLER.onnx

Prints three figures, for the model as it is and in the best order: the peak of activations (the need of an ideal
allocator), the memory that a session plans (one block and the outputs), and the resident memory that runs add to a
fresh process. Where runs add less memory, the latency is shown too, relative to the model as it is. Sets of options:

  defaults                     one block for all results, kept in an arena
  no pattern                   results are allocated in the arena one by one
  no pattern, no arena         freed memory is returned to the system
  no pattern, arena or reuse   no result reuses the memory of another; nearest to the peak of activations

SMALLER.onnx is the model as ONNX Runtime optimises it on this machine, with its nodes in the best order. Sessions keep
this order if they are made by the printed lines, with the options of the least memory within the accepted slowdown. Its
outputs are equal to the model's bit for bit. If no order is better, no file is written, and only options can save
memory. The file suits processors like this one; its order is best at the sizes of --shape, one for each dimension.

SMALLER.receipt.json makes the same file again and checks its figures:

    %(prog)s MODEL.onnx --out AGAIN.onnx --receipt SMALLER.receipt.json"""


def add(commands) -> None:
    command = add_command(commands, "memory", run, TEXT, PAGE)
    command.add_argument("model", metavar="MODEL.onnx", help="path of an ONNX file, or a zoo name")
    out = "file for the model; its receipt and a page with a chart are written beside it"
    command.add_argument("--out", required=True, metavar="FILE", help=out)
    seconds = "time limit of the search, and again of the measurements; slow models need more (default: 20)"
    command.add_argument("--seconds", type=float, default=20.0, metavar="S", help=seconds)
    slowdown = "largest accepted slowdown by session options, in percent (default: 5)"
    command.add_argument("--slowdown", type=float, default=5.0, metavar="X", help=slowdown)
    rewrites = "first rewrite the model by proved rules, for S seconds; outputs are then equal within a tolerance"
    command.add_argument("--rewrite", type=float, nargs="?", const=20.0, metavar="S", help=f"{rewrites} (default: 20)")
    command.add_argument("--receipt", metavar="R.json", help="write the order of this receipt and check its figures")
    add_threads(command)
    add_sizes(command)
    add_inputs(command)
    add_custom_ops(command)


def run(parsed) -> dict:
    from rlflow.graph.feeds import tried_feeds
    from rlflow.memory.pipeline import Optimised, named_sizes
    from rlflow.optimisation.validate.onnx_model import Model
    from rlflow.runs.config import parse_shapes

    if not parsed.seconds > 0 or not parsed.slowdown >= 0 or not (parsed.rewrite is None or parsed.rewrite > 0):
        raise RLFlowError("pass --seconds and --rewrite above 0 and --slowdown of at least 0")
    threads, out = threads_of(parsed), Path(parsed.out)
    receipt = read_json(parsed.receipt) if parsed.receipt else None
    if receipt is not None and (parsed.shape or parsed.fix or parsed.rewrite):
        raise RLFlowError("the receipt states sizes and rewrites. Leave out --shape, --fix and --rewrite")
    shapes, fix = named_sizes(receipt) if parsed.receipt else (parse_shapes(parsed.shape), parsed.fix)
    with TemporaryDirectory(prefix=".memory-", dir=out.parent) as folder:
        source = source_of(parsed.model, Path(folder), out)
        feeds = tried_feeds(source, parsed.inputs, shapes, threads, Model.read(source).proto)
        shapes = feeds.named_sizes(shapes)
        model = Optimised(source, Path(folder), shapes, fix, feeds=feeds)
        if receipt is not None:
            return repeat_receipt(parsed, receipt, model, shapes, threads)
        return improve_model(parsed, model, shapes, threads)


def source_of(name: str, folder: Path, out: Path) -> Path:
    """Return the path of the model; a zoo model is first written into a folder.

    Args:
      name: a path or a zoo name.
      folder: the folder for the file of a zoo model.
      out: the output of the command, which must not be the file of the model.
    """
    from rlflow.graph.onnx_writer import check_apart, save_model
    from rlflow.zoo import zoo_or_path

    model = zoo_or_path(name)
    if isinstance(model, str):
        check_apart(model, out)
        return Path(model)
    save_model(model, folder / "original.onnx")
    return folder / "original.onnx"


def repeat_receipt(parsed, receipt: dict, before, shapes: dict, threads: int) -> dict:
    from rlflow.graph.onnx_writer import copy_model
    from rlflow.memory.pipeline import make_again

    model, executed = make_again(before, receipt, shapes, threads)
    out = Path(parsed.out)
    copy_model(model.path, out, same=False)
    text = f"the order of {counted(len(executed), 'node')} repeated; the file is the same, byte for byte"
    sure = "its peaks are those of the receipt; bits compared with the model; the bound is not proved again"
    words = *shape_words(shapes, fix=False), *input_words(parsed.inputs)
    ending({"result": text, "sure": sure, "model": out}, "measure", parsed.model, out, *words)
    return {"nodes": len(executed), "bytes": receipt["bytes"], "model_sha256": receipt["model_sha256"]}


def improve_model(parsed, before, shapes: dict, threads: int) -> dict:
    from rlflow.graph.onnx_runtime import Setup
    from rlflow.memory.pipeline import improve, snippet

    improved = improve(before, shapes, parsed.fix, threads, parsed.seconds, parsed.slowdown, parsed.rewrite)
    results = {"model": parsed.model, **improved.results}
    code, files = snippet(parsed.out if results["written"] else parsed.model, improved.setup), {}
    if results["written"]:
        files = write_files(Path(parsed.out), improved.model, results, improved.usage, improved.receipt, code)
    show(results, code if improved.setup != Setup() else "")
    end_with(parsed, results, files, shape_words(shapes, parsed.fix))
    return results | {"files": {name: str(file) for name, file in files.items()}}


def write_files(out: Path, model, results: dict, usage: Sequence, receipt: dict, code: str) -> dict[str, Path]:
    """Write the page, the receipt and the model, and return "model", "receipt" and "page" → file.

    The model is written last. If it exists, the other two files are therefore complete.
    """
    from rlflow.graph.onnx_writer import copy_model
    from rlflow.reports.memory_page import write_page

    files = {"model": out, "receipt": out.with_suffix(".receipt.json"), "page": out.with_suffix(".memory.html")}
    write_page(files["page"], results, usage, code)
    write_json(files["receipt"], receipt)
    copy_model(model.path, out, same=False)
    return files


def show(results: dict, code: str) -> None:
    """Print the table of sizes and latencies.

    Args:
      results: the results of the command.
      code: Python code that loads the model, printed after the table; an empty text prints nothing.
    """
    from rlflow.reports.memory_page import figures, names_of

    lines = [("MB", *names_of(results), "latency"), *figures(results)]
    width = max(len(what) for what, *_ in lines)
    for what, usual, ordered, latency in lines:
        shown = (usual, ordered, latency) if results["written"] else (usual, latency)
        print(" ".join([f"{what:{width}}", *(f"{text:>10}" for text in shown)]).rstrip())
    if code:
        print(f"\nWith '{results['setup']}':\n\n{code}\n")


def end_with(parsed, results: dict, files: dict, shapes: list[str]) -> None:
    lines = {"result": result_line(results), "sure": "; ".join(certainty(results))} | files
    if not files:
        ending(lines, "optimise", parsed.model, "--out", parsed.out, *shapes, *input_words(parsed.inputs))
        return
    again = files["model"].with_suffix(".again.onnx")
    words = "--out", again, "--receipt", files["receipt"], *input_words(parsed.inputs)
    ending(lines, "memory", parsed.model, *words)


def result_line(results: dict) -> str:
    sizes = results["bytes"]
    peak, usual, bound = (f"{sizes[name] / 1e6:.3f}" for name in ("peak", "usual_peak", "bound"))
    least = "proved: no order needs less" if results["proved"] else f"no order needs less than {bound} MB"
    if results["rewritten"]:
        order = f"the best order alone needs {results['rewritten']['best_order'] / 1e6:.3f}"
        least = f"{counted(sum(results['rewritten']['rules'].values()), 'rewrite')}; {order}"
    if results["written"]:
        return f"{results['gain_percent']:.1f} % less at the peak: {peak} MB of activations instead of {usual}; {least}"
    if results["proved"]:
        return f"nothing to gain from another order: ONNX Runtime's own needs {usual} MB; {least}. Nothing was written"
    return f"no better order than ONNX Runtime's own ({usual} MB) was found; {least}. Nothing was written"


def certainty(results: dict) -> list[str]:
    """Return texts that state the certainty of the results: checks, restrictions, sizes and measurements."""
    from rlflow.graph.typical import sizes_text
    from rlflow.optimisation.choice import EvalOptions
    from rlflow.optimisation.validate.findings import not_comparable

    parts, on = [], counted(len(EvalOptions.seeds), "random input")
    bits = f"the same bits on {on}, " if results["compared"] else ""
    if results["rewritten"]:
        parts.append(f"{results['rewritten']['checks']} between the model and the rewritten one")
        parts.append(f"that and the file: {bits}run in that order")
    elif results["written"]:
        parts.append(f"{bits}run in that order")
    if results["drawn"]:
        parts.append(not_comparable(results["drawn"]))
    if results["this_processor_only"]:
        parts.append("it suits only processors like this one")
    lowest, highest = results["usual_peaks"][0], results["usual_peaks"][-1]
    if lowest < highest:
        parts.append(f"the original runs in different orders: from {lowest / 1e6:.3f} to {highest / 1e6:.3f} MB")
    if results["sizes"]:
        parts.append(f"at {sizes_text(results['sizes'])}")
    if results["unknown_sizes"]:
        parts.append(f"{counted(results['unknown_sizes'], 'result')} of unknown size counted as 0 bytes")
    return [*parts, measured_line(results)]


def measured_line(results: dict) -> str:
    """Return one line about the measured effect of the chosen session options on resident memory and latency."""
    from rlflow.reports.sentences import measured_text

    first, best = results["rows"][0], next(row for row in results["rows"] if row["setup"] == results["setup"])
    if first["usual_bytes"] is None:
        return "resident memory is not counted on this system"
    if not best["latency"]:
        return f"runs add {first['usual_bytes'] / 1e6:.3f} MB to resident memory; no acceptable options add less"
    usual = f"{best['usual_bytes'] / 1e6:.3f} with them, {first['usual_bytes'] / 1e6:.3f} with the defaults"
    added = f"runs add {best['bytes'] / 1e6:.3f} MB to resident memory (the original: {usual})"
    return f"with '{best['setup']}' {added}, {measured_text(best['latency'])}"
