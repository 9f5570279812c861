import onnx
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs import TimeIsUp
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.env.state import Task
from rlflow.optimisation.receipt import carried_over, make_receipt, rewrites_of
from rlflow.search.descents import greedy
from rlflow.zoo import load
from tests.suite import at_night
from tests.toys.shape_arithmetic import MODEL
from tests.toys.tiny import tiny_task
from tests.toys.weights import with_other_weights


def task_of(model: onnx.ModelProto) -> Task:
    return EnvSpec("", cost="analytic", threads=1).open(model)


def receipt_of(task: Task) -> tuple[dict, int]:
    """Return the receipt of the greedy search on a task and the objective of its result."""
    result = greedy(task.initial, 500)
    actions = (*task.preparation, *result.actions)
    return make_receipt(task.original, task.rules, [], actions, result.state.graph, {}), result.state.objective


def test_a_receipt_carried_over_to_its_own_model_gives_the_recorded_result():
    task = tiny_task(at_night("tiny_inception_v3", "tiny_resnet18"))
    receipt, objective = receipt_of(task)
    result = carried_over(task, rewrites_of(receipt))
    assert result.state.objective == objective and result.state.hash == receipt["result_hash"]
    assert (result.carried_out, result.left_out, result.interrupted) == (len(receipt["actions"]), 0, False)


def test_a_model_with_other_weights_gets_the_same_rewrites():
    model = load(at_night("tiny_inception_v3", "tiny_resnet18"))
    receipt, objective = receipt_of(task_of(model))
    task = task_of(with_other_weights(model))
    result = carried_over(task, rewrites_of(receipt))
    assert task.graph.hash != receipt["original_hash"] and result.state.hash != receipt["result_hash"]
    assert result.state.objective == objective and result.left_out == 0


def test_another_model_gets_the_rewrites_that_fit_and_the_cheapest_graph_on_the_way():
    receipt, _ = receipt_of(tiny_task("tiny_inception_v3"))
    task = tiny_task("tiny_squeezenet1_1")
    result = carried_over(task, rewrites_of(receipt))
    assert 0 < result.carried_out and 0 < result.left_out
    assert result.carried_out + result.left_out == len(receipt["actions"])
    state, objectives = task.initial, [task.initial.objective]
    for action in result.actions:
        state = state.apply(*action)
        objectives.append(state.objective)
    assert state.hash == result.state.hash and result.state.objective == min(objectives)


def test_a_rewrite_that_only_raises_the_cost_is_not_kept():
    task = tiny_task("tiny_bert_base")
    initial = task.initial
    valid = map(tuple, initial.valid_actions()[:-1].tolist())
    xfer_id, location = next(action for action in valid if initial.apply(*action).objective > initial.objective)
    result = carried_over(task, [(task.rules[xfer_id].name, location)])
    assert result.actions == [] and result.state is initial and result.carried_out == 1


def test_rewrites_with_unknown_rules_or_locations_are_left_out():
    task = tiny_task("tiny_resnet18")
    xfer_id, _ = map(int, task.initial.valid_actions()[0])
    rewrites = [("no-such-rule", 0), (task.rules[xfer_id].name, 10_000), (task.rules[xfer_id].name, -1)]
    result = carried_over(task, rewrites)
    assert (result.carried_out, result.left_out, result.actions) == (0, 3, [])


def test_preparation_steps_of_a_receipt_are_not_carried_over():
    task = task_of(onnx.parser.parse_model(MODEL))
    receipt, objective = receipt_of(task)
    assert task.preparation and len(receipt["actions"]) > len(task.preparation)
    result = carried_over(task, rewrites_of(receipt))
    assert result.state.objective == objective and result.left_out == 0
    assert result.carried_out == len(receipt["actions"]) - len(task.preparation)


def test_rewrites_carried_over_before_the_time_is_up_are_kept():
    class Late(AnalyticCost):
        """An analytic cost that raises TimeIsUp once it has been asked for `left` nodes."""

        left = 10**9

        def node_cost(self, *arguments):
            self.left -= 1
            if self.left < 0:
                raise TimeIsUp("")
            return super().node_cost(*arguments)

    plain = tiny_task("tiny_inception_v3")
    receipt, objective = receipt_of(plain)
    cost = Late()
    task = Task(plain.graph, plain.rules, cost)
    begun = task.initial.objective
    cost.left = 40
    result = carried_over(task, rewrites_of(receipt))
    assert result.interrupted and 0 < result.carried_out < len(receipt["actions"])
    assert objective < result.state.objective < begun


@pytest.mark.parametrize(
    "receipt", [[], {}, {"actions": 3}, {"actions": [3]}, {"actions": [{"rule": "x"}]},
                {"actions": [{"rule": "x", "location": "y"}]}]
)  # fmt: skip
def test_a_malformed_receipt_is_refused(receipt):
    with pytest.raises(RLFlowError, match="not a receipt"):
        rewrites_of(receipt)
