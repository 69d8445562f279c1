"""Files, folders and packages that a configuration names must be there, and what it writes must have a place, before
anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from .conversations import conversation_files
from .engines import engine_package
from .lora import adapter_problems
from .places import HUB_NAME, impossible_path
from .problems import Problem
from .schema import EvaluationConfig, GenerationConfig, PPOConfig, SFTConfig
from .schema.base import Node


def path_problems(config: Node) -> Iterator[Problem]:
    """Everything that is named and not there."""
    for key, value in _data_files(config).items():
        for path in [value] if isinstance(value, str) else value or []:
            yield from _file(key, path)
    for key, path in models_of(config).items():
        yield from _model(key, path)
    for key, file in _own_files(config).items():
        if file is not None:
            yield from _file(key, file)
    for key, package in _external_libs(config).items():
        yield from _package(key, package)
    for key, folder in _output_folders(config).items():
        yield from _writable(key, folder, folder=True)
    for key, file in _output_files(config).items():
        yield from _writable(key, file, folder=False)
        yield from _not_read(key, file, config)
    if isinstance(config, (PPOConfig, GenerationConfig)):
        yield from engine_package(config)
    if isinstance(config, (PPOConfig, SFTConfig)):
        yield from adapter_problems(config)
        if config.trainer.resume_mode == "resume_path" and config.trainer.resume_from_path is not None:
            yield from _folder("trainer.resume_from_path", config.trainer.resume_from_path)
        for name in config.trainer.logger:
            yield from _logger(name)


def _data_files(config: Node) -> dict[str, str | list[str] | None]:
    if isinstance(config, (PPOConfig, SFTConfig)):
        return {"data.train_files": config.data.train_files, "data.val_files": config.data.val_files}
    if isinstance(config, (GenerationConfig, EvaluationConfig)):
        return {"data.path": config.data.path}
    return {}


def models_of(config: Node) -> dict[str, str]:
    """A critic that starts from the actor's model is not listed again."""
    if isinstance(config, SFTConfig):
        return {"model.partial_pretrain": config.model.partial_pretrain}
    if isinstance(config, GenerationConfig):
        return {"model.path": config.model.path}
    if isinstance(config, PPOConfig):
        models = {"actor_rollout_ref.model.path": config.actor_rollout_ref.model.path}
        if config.trains_critic and config.critic.model.path != config.actor_rollout_ref.model.path:
            models["critic.model.path"] = config.critic.model.path
        tokenizer = config.critic.model.tokenizer_path
        if config.trains_critic and tokenizer not in (None, config.critic.model.path):
            models["critic.model.tokenizer_path"] = tokenizer
        if config.data.tokenizer is not None:
            models["data.tokenizer"] = config.data.tokenizer
        return models
    return {}


def _external_libs(config: Node) -> dict[str, str | None]:
    if isinstance(config, PPOConfig):
        libs = {"actor_rollout_ref.model.external_lib": config.actor_rollout_ref.model.external_lib}
        return {**libs, "critic.model.external_lib": config.critic.model.external_lib if config.trains_critic else None}
    if isinstance(config, (SFTConfig, GenerationConfig)):
        return {"model.external_lib": config.model.external_lib}
    return {}


def _own_files(config: Node) -> dict[str, str | None]:
    files: dict[str, str | None] = {}
    if isinstance(config, (PPOConfig, EvaluationConfig)):
        files["custom_reward_function.path"] = config.custom_reward_function.path
    if isinstance(config, PPOConfig):
        role = config.actor_rollout_ref
        files["algorithm.custom_estimator.path"] = config.algorithm.custom_estimator.path
        files["actor_rollout_ref.actor.policy_loss.custom_loss.path"] = role.actor.policy_loss.custom_loss.path
    if isinstance(config, (PPOConfig, GenerationConfig)):
        files.update(conversation_files(config))
    return files


def _output_folders(config: Node) -> dict[str, str | None]:
    if isinstance(config, PPOConfig):
        names = ("default_local_dir", "rollout_data_dir", "validation_data_dir")
        return {f"trainer.{name}": getattr(config.trainer, name) for name in names}
    return {"trainer.default_local_dir": config.trainer.default_local_dir} if isinstance(config, SFTConfig) else {}


def _output_files(config: Node) -> dict[str, str | None]:
    files: dict[str, str | None] = {}
    if isinstance(config, (PPOConfig, SFTConfig, GenerationConfig)):
        files["ray_init.timeline_json_file"] = config.ray_init.timeline_json_file
    if isinstance(config, GenerationConfig):
        files["data.output_path"] = config.data.output_path
    if isinstance(config, EvaluationConfig):
        files["output_path"] = config.output_path
    return files


def _package(key: str, name: str | None) -> Iterator[Problem]:
    if name is not None and find_spec(name.partition(".")[0]) is None:
        fix = f"install it, or set {key}=null"
        yield Problem(key, f"there is no package {name}", "a package on Python's path", fix)


def _writable(key: str, wanted: str | None, *, folder: bool) -> Iterator[Problem]:
    """What exists of the path must be folders, and the last of them must take a new entry."""
    if wanted is None:
        return
    if problem := impossible_path(key, wanted):
        yield problem
        return
    path = Path(wanted).expanduser()
    if not folder and path.is_dir():
        yield Problem(key, f"{path} is a folder", "a file to write", f"set {key} to a file in it")
        return
    first = path if folder else path.absolute().parent
    found = next(parent for parent in (first.absolute(), *first.absolute().parents) if parent.exists())
    expected = "a folder that can be written" if folder else "a file in a folder that can be written"
    if not found.is_dir():
        yield Problem(key, f"{path} cannot be made, since {found} is a file", expected, f"set {key} to another place")
    elif reason := _refusal(found):
        wrong = f"{path} cannot be written: {reason} (tried in {found})"
        yield Problem(key, wrong, expected, f"set {key} to another place")


def _refusal(folder: Path) -> str | None:
    """Why the folder takes no new entry. It is tried: permissions do not tell for root, nor on read-only systems."""
    try:
        with TemporaryDirectory(prefix=".hone_", dir=folder):
            return None
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _not_read(key: str, wanted: str | None, config: Node) -> Iterator[Problem]:
    """Whatever an output is called, it must not take the place of an input."""
    if wanted is None or impossible_path(key, wanted) or not (output := Path(wanted).expanduser()).is_file():
        return
    for source, value in _data_files(config).items():
        for path in [value] if isinstance(value, str) else value or []:
            if (
                impossible_path(source, path) is None
                and Path(path).expanduser().is_file()
                and output.samefile(Path(path).expanduser())
            ):
                expected = "a file that the command does not read"
                yield Problem(key, f"{wanted} is the file that {source} names", expected, f"set {key} to another file")


def _file(key: str, path: str) -> Iterator[Problem]:
    if "://" in path:
        yield _remote(key, path)
    elif problem := impossible_path(key, path):
        yield problem
    elif not Path(path).expanduser().is_file():
        wrong = f"{path} is a folder" if Path(path).expanduser().is_dir() else f"there is no file {path}"
        several = f"; several files are a list, {key}=[{path.strip('[]')}]" if "," in path else ""
        yield Problem(key, wrong, "a file on this machine", f"set {key} to a file that exists{several}")


def _folder(key: str, path: str) -> Iterator[Problem]:
    if problem := impossible_path(key, path):
        yield problem
    elif not Path(path).expanduser().is_dir():
        yield Problem(key, f"there is no folder {path}", "a folder on this machine", f"set {key} to one that exists")


def _model(key: str, path: str) -> Iterator[Problem]:
    """`owner/name` and `name` may be on the hub; anything else must be on disk."""
    if "://" in path:
        yield _remote(key, path)
        return
    if problem := impossible_path(key, path):
        yield problem
        return
    local = Path(path).expanduser()
    if not local.is_dir() and (local.is_file() or not HUB_NAME.fullmatch(path)):
        expected = "a Hugging Face model folder, or a hub name such as owner/name"
        yield Problem(key, f"there is no folder {path}", expected, f"set {key} to a model")
    elif local.is_dir() and not (local / "config.json").exists():
        yield from _checkpoint(key, local)


def _checkpoint(key: str, folder: Path) -> Iterator[Problem]:
    """A checkpoint of hone's holds a model folder only if it was asked for."""
    if "global_step_" not in f"{folder.parent.name}/{folder.name}":
        return
    exported = [part / "huggingface" for part in (folder / "actor", folder / "model", folder)]
    found = next((part for part in exported if part.is_dir()), None)
    wrong = f"{folder} is a checkpoint of a run" + ("" if found else " that was saved without hf_model")
    fix = f"set {key}={found}" if found else "save with hf_model in checkpoint.save_contents, and name its huggingface/"
    yield Problem(key, wrong, "a Hugging Face model folder", fix)


def _remote(key: str, path: str) -> Problem:
    return Problem(key, f"{path} is a remote address, which is not read", "a local path", "copy it to this machine")


def _logger(name: str) -> Iterator[Problem]:
    if name != "console" and find_spec(name) is None:
        fix = f'pip install "hone-rl[{name}]", or leave {name} out of trainer.logger'
        yield Problem("trainer.logger", f"{name} is not installed", f"the package {name}", fix)
