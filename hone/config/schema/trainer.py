"""`trainer` and `ray_init`: how long a run is, where it writes, which processes it uses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from .base import Node, key, node

Device = Literal["auto", "cpu", "cuda"]
Logger = Literal["console", "tensorboard", "wandb", "swanlab", "mlflow"]
ResumeMode = Literal["auto", "disable", "resume_path"]


def _bool_as_text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def rank_timeout() -> Any:
    return key(300, "Seconds to wait for Ray workers to register.", ge=1)


# nsys takes the words true and false; YAML and Hydra read them as booleans.
BoolText = Annotated[Literal["true", "false"], BeforeValidator(_bool_as_text)]


class ControllerNsightOptions(Node):
    """Nsight Systems options of the driver's process."""

    trace: str = key("cuda,nvtx,cublas,ucx", "APIs to trace.")
    cuda_memory_usage: BoolText = key("true", "Whether CUDA memory is recorded.", alias="cuda-memory-usage")
    cuda_graph_trace: str = key("graph", "Trace CUDA graphs as a whole or by node.", alias="cuda-graph-trace")


class WorkerNsightOptions(ControllerNsightOptions):
    """Nsight Systems options of the worker processes."""

    capture_range: str = key("cudaProfilerApi", "What starts and ends recording.", alias="capture-range")
    capture_range_end: str | None = key(None, "What happens when the range ends.", alias="capture-range-end")
    kill: str = key("none", "Signal sent to the application when recording ends.")


class TrainerConfig(Node):
    """The training loop."""

    total_epochs: int = key(30, "Passes over the training set.", ge=1)
    total_training_steps: int | None = key(None, "Training steps; null works them out from total_epochs.", ge=1)
    project_name: str = key("verl_examples", "Project in wandb, swanlab and mlflow; part of default_local_dir.")
    experiment_name: str = key("gsm8k", "Name of the run; part of default_local_dir.")
    logger: list[Logger] = key(["console", "wandb"], "Where metrics go.")
    log_val_generations: int = key(0, "Validation samples shown in the logger.", ge=0)
    rollout_data_dir: str | None = key(None, "Folder for every trajectory, one jsonl file per step; null writes none.")
    validation_data_dir: str | None = key(None, "Folder for validation trajectories; null writes none.")
    nnodes: int = key(1, "Machines.", ge=1)
    n_gpus_per_node: int = key(8, "Ranks on each machine.", ge=1)
    device: Device = key("auto", "Where models run; auto takes a GPU if there is one.")
    seed: int = key(0, "Seed of sampling and of newly made weights.", ge=0)
    balance_batch: bool = key(True, "Deal trajectories to ranks so that their token counts are close.")
    save_freq: int = key(-1, "Steps between checkpoints, and one after the last step; -1 saves nothing.", ge=-1)
    val_before_train: bool = key(True, "Validate before the first step.")
    val_only: bool = key(False, "Validate and stop.")
    test_freq: int = key(2, "Steps between validations; -1 turns validation by step off.", ge=-1)
    critic_warmup: int = key(0, "First steps that train the critic alone.", ge=0)
    default_hdfs_dir: str | None = key(None, "HDFS folder for checkpoints.")
    default_local_dir: str = key(
        "checkpoints/${trainer.project_name}/${trainer.experiment_name}", "Folder of the run: checkpoints and metrics."
    )
    resume_mode: ResumeMode = key("auto", "auto goes on from the newest checkpoint, resume_path from the given one.")
    resume_from_path: str | None = key(None, "Checkpoint folder to resume from, with resume_mode=resume_path.")
    remove_previous_ckpt_in_save: bool = key(False, "Deprecated: see max_actor_ckpt_to_keep.")
    del_local_ckpt_after_load: bool = key(False, "Delete a checkpoint once it is loaded.")
    max_actor_ckpt_to_keep: int | None = key(None, "Newest actor checkpoints to keep; null keeps all.", ge=1)
    max_critic_ckpt_to_keep: int | None = key(None, "Newest critic checkpoints to keep; null keeps all.", ge=1)
    ray_wait_register_center_timeout: int = rank_timeout()
    profile_steps: list[int] | None = key(None, "Training steps to profile; null profiles none.")
    controller_nsight_options: ControllerNsightOptions = node(ControllerNsightOptions)
    worker_nsight_options: WorkerNsightOptions = node(WorkerNsightOptions)


class RayInitConfig(Node):
    """How Ray is started."""

    address: str | None = key(None, "Ray cluster to join (auto, or HOST:PORT); null starts one on this machine.")
    num_cpus: int | None = key(None, "CPUs that a Ray started here may use; null asks the machine.", ge=1)
    timeline_json_file: str | None = key(None, "File for Ray's timeline.")
