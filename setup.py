from setuptools import find_packages, setup

TENSORFLOW = [
    "tensorflow-cpu>=2.20,<3; sys_platform == 'linux' and platform_machine == 'x86_64'",
    "tensorflow>=2.20,<3; sys_platform != 'linux' or platform_machine != 'x86_64'",  # tensorflow-cpu has no wheel here
]

setup(
    name="rlflow",
    version="0.2.0",
    description="Makes ONNX models faster by proved rules, and learns how in a dream.",
    license="MIT",
    python_requires=">=3.11,<3.14",
    # The folder configs/ of a checkout is installed as the package rlflow.configs.
    packages=[*find_packages(include=["rlflow*", "worldmodel*", "controllers*"]), "rlflow.configs"],
    package_dir={"rlflow.configs": "configs"},
    package_data={
        "rlflow.rules": ["*.rules", "proofs.json"],
        "rlflow.costs": ["*.prior.npz"],
        "rlflow.tasks.expressions": ["*.ks", "*.txt"], "rlflow.tasks.expressions.recorded": ["*"],
        "rlflow.configs": ["*.yaml", "sweeps/*.yaml", "memories/*.yaml"],
    },
    entry_points={"console_scripts": ["rlflow = rlflow.cli.main:main"]},
    # Ranges of versions; constraints.txt holds the exact versions that were tested together.
    install_requires=[
        "numpy>=2.0,<3",
        "onnx>=1.20,<2",
        "onnxruntime>=1.23,<2",
        "gymnasium>=1.1,<2",
        "omegaconf>=2.3,<3",
        "tqdm>=4.66,<5",
        "filelock>=3.30,<5",
        "psutil>=6,<8",
        "matplotlib>=3.9,<4",
        "scipy>=1.15,<2",
        "tensorboard>=2.20,<3",  # every run writes its curves as event files
    ],
    extras_require={
        # world models, controllers that learn, and sweeps
        "learn": [
            *TENSORFLOW,
            "dm-sonnet>=2.0.2,<3", "graph_nets>=1.1,<2", "cma>=4.0,<5", "optuna>=5,<6",
        ],
        "test": [
            "pytest>=8,<10", "hypothesis>=6.100,<7", "pytest-xdist>=3.6,<4", "pytest-timeout>=2.3,<3",
            "ruff>=0.9,<1",
            "z3-solver>=4.13,<6",
            "setuptools>=77",  # for building the wheel
            "onnxruntime-extensions>=0.14,<1",  # a library of custom operators
            "lightgbm>=4.5,<5",
        ],
        "nightly": ["playwright>=1.49,<2"],  # for tests of the reports in a browser
        "prior": ["lightgbm>=4.5,<5"],  # trains the prior of kernels (`costs train`); using it does not need LightGBM
        "prove": ["z3-solver>=4.13,<6"],  # for proving rules; applying proved rules does not need it
        # compiles the simulators and searches of the task placement, which run 100 times slower without it
        "place": ["numba>=0.62,<1"],
        "packing": ["ortools>=9.14,<10"],  # the yardstick of the addresses of the task placement
        "distributed": ["ray>=2.40,<3"],  # for collecting on several machines
        # for benchmarks.exports: exporters, and the tools with which RLFlow is compared;
        # benchmarks/exports/constraints.txt holds the exact versions
        "exports": [
            *TENSORFLOW,
            "keras>=3.10,<4", "tf2onnx>=1.17,<2",
            "torch>=2.13,<3", "torchvision>=0.28,<1", "timm>=1.0,<2", "transformers>=5,<6", "onnxscript>=0.7,<1",
            "onnxsim>=0.8,<1", "onnxslim>=0.1.90,<1", "openvino>=2026,<2027",
        ],
        "expressions": ["egglog>=13,<14"],  # the yardstick of the task expressions
        "agents": ["sb3-contrib>=2.6,<3", "torch>=2.5"],  # third-party agents of docs/TRAIN_AN_AGENT.md
    },
)  # fmt: skip
