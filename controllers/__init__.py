"""Controllers: agents that choose rewrites from observations, in a dream or on the real graph.

To add a controller, write a file with a subclass of `Controller` (base.py), or of `Learner` if the controller does not
observe the latent state of a world model. Add a line to CONTROLLERS below, and a line with the class of its options to
CONFIGS in controller_options.py.

Most controllers choose among match classes (see worldmodel/base.py). policies.py and cma_es.py describe the initial
policies of PPO and CMA-ES. planner.py describes the searches in the dream. iterations.py and recording.py describe how
real episodes of a controller improve the world model.
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
        "astar": "controllers.astar.agent:AStar",
        "linear-scores": "controllers.linear_scores:LinearScores",
        "topoformer": "controllers.topoformer.controller:Topoformer",
        "egrl": "controllers.egrl.agent:EGRL",
    },
)
