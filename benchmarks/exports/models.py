"""Models as people export them, with random weights: a file for each, the same for the same seed and exporter.

Exporters are heavy and none of RLFlow's business: `pip install '.[exports]'`; each is imported where it is used.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np


def nasnet_mobile(path: Path, seed: int) -> None:
    """NASNetMobile by Keras 3's own ONNX export, float32 [1, 224, 224, 3]; statistics are drawn, so that nothing is 0
    or 1 by chance."""
    import keras

    from benchmarks.keras_models import draw_statistics

    keras.utils.set_random_seed(seed)
    model = keras.applications.NASNetMobile(weights=None)
    draw_statistics(model, np.random.default_rng(seed))
    given = [keras.InputSpec(shape=(1, 224, 224, 3), dtype="float32")]
    model.export(str(path), format="onnx", input_signature=given, verbose=False)


def distilbert_float16(path: Path, seed: int) -> None:
    """DistilBERT's encoder in float16 by PyTorch's dynamo exporter, 128 tokens."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model = transformers.DistilBertModel(transformers.DistilBertConfig(attn_implementation="eager")).eval().half()
    tokens, mask = torch.randint(0, 30000, (1, 128)), torch.ones(1, 128, dtype=torch.int64)
    with torch.no_grad():
        torch.onnx.export(
            model, (tokens, mask), str(path), input_names=["input_ids", "attention_mask"],
            output_names=["last_hidden_state"],
            opset_version=18, dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip


EXPORTS: dict[str, Callable[[Path, int], None]] = {
    "nasnet_mobile": nasnet_mobile,
    "distilbert_float16": distilbert_float16,
}
