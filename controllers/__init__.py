"""Controllers: whoever acts. Step by step they see batched latent observations and cannot tell a dream from reality.

To add one: write one file with a `Controller` subclass (`controllers/base.py`), or a `Learner` for one-shot tasks, and
add its line here.

What they choose among are match classes (worldmodel/base.py says why). Where PPO and CMA-ES begin stands in policies.py
and cma_es.py, how a planner uses the dream in planner.py, how learning goes on with what was played for real in
iterations.py and recording.py.
"""

import worldmodel  # noqa: F401  (prepares the environment that TensorFlow starts in)
from rlflow.common.registry import Registry

CONTROLLERS = Registry(
    "controller",
    {
        "random": "controllers.random:RandomController",
        "cma-es": "controllers.cma_es:CMAES",
        "ppo": "controllers.ppo:PPO",
        "planner": "controllers.planner:Planner",
        "xrlflow": "controllers.xrlflow.agent:XRLflow",
        "linear-scores": "controllers.linear_scores:LinearScores",
        "topoformer": "controllers.topoformer.controller:Topoformer",
    },
)
