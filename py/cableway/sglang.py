"""`load_format="cableway"` for SGLang: engines on one machine read a model once, and engines on one GPU share its memory.

The plugin is known to SGLang as soon as cableway is installed beside it::

    python -m sglang.launch_server --model-path /models/llm --load-format cableway \\
        --model-loader-extra-config '{"name": "llm", "keep": true}'

Options are `name`, `files`, `keep` and `share` (the guide's page "Models" has them). For SGLang from 0.5.23 on.
"""

from __future__ import annotations

import os
from typing import Any

from cableway._engines import state
from cableway._engines.options import options
from cableway.tree import Tree

try:
    import torch
    from sglang.srt.arg_groups import choices
    from sglang.srt.model_loader.loader import (
        BaseModelLoader,
        DefaultModelLoader,
        _get_quantization_config,
        _initialize_model,
    )
    from sglang.srt.model_loader.utils import set_default_torch_dtype
    from sglang.srt.model_loader.weight_utils import download_weights_from_hf
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.weight_cache.ipc_loader import IpcModelLoader
    from sglang.srt.weight_cache.protocol import (
        UnsupportedQuantForIPCError,
        check_ipc_quant_support,
        compute_env_stamp,
        hash_quant_config,
    )
except ImportError as error:
    raise ImportError(
        f"cableway.sglang needs SGLang, 0.5.23 or later, with PyTorch: pip install 'sglang>=0.5.23' ({error})"
    ) from error

__all__ = ["CablewayModelLoader", "register"]

LOAD_FORMAT = "cableway"


class CablewayModelLoader(BaseModelLoader):  # type: ignore[misc]
    """Loads models of SGLang from trees of cableway.

    The first engine takes the weights from the tree (which `cableway.load` fills from the model's files, once for all who ask),
    lets SGLang split and process them, and publishes what came out. Later engines with the same model and settings on the same GPU
    get that memory, read-only and without a copy. It blocks while another process reads the files.

    Args:
        load_config: of SGLang; its `model_loader_extra_config` has the options.

    Raises:
        ValueError: a bad option; the text says which there are.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self._options = options(load_config.model_loader_extra_config)

    def download_model(self, model_config: Any) -> None:
        """Downloads the model's .safetensors files if they are not here. They are not read yet."""
        self._folder(model_config)

    def load_model(self, *, model_config: Any, device_config: Any) -> Any:
        """The model, ready to run.

        Raises:
            ValueError: this quantization does not go with shared weights; the text says how to go on without.
            NameTaken: the name means other files.
            cableway.Error: a published state does not fit.
        """
        self.preloaded_weights_bytes = 0
        if self._options.share != "state":
            return self._loaded(model_config, device_config)
        method, quantization = IpcModelLoader._resolve_engine_quant(self, model_config)
        try:
            check_ipc_quant_support(method, quantization, where="client")
        except UnsupportedQuantForIPCError as error:
            raise ValueError(
                f'{error} Or use "share": "weights" in model_loader_extra_config'
            ) from error
        fields = self._fields(model_config, device_config, method, quantization)
        name = state.name_of(self._options, "sglang", fields)
        tree = state.find(name, fields)
        if tree is not None:
            model = self._attached(tree, model_config)
            self.preloaded_weights_bytes = tree.nbytes
            return model
        model = self._loaded(model_config, device_config)
        state.share(name, model, fields, keep=self._options.keep)
        IpcModelLoader._rebuild_stale_views(model)
        return model

    def _loaded(self, model_config: Any, device_config: Any) -> Any:
        """A model with memory of its own, filled from the tree of weights."""
        device = torch.device(device_config.device)
        quantization = _get_quantization_config(model_config, self.load_config)
        with set_default_torch_dtype(model_config.dtype):
            with device:
                model = _initialize_model(model_config, self.load_config, quantization)
            if getattr(model, "secondary_weights", None):
                raise ValueError(
                    f"{type(model).__name__} takes weights from several places, which load format "
                    f'"{LOAD_FORMAT}" does not know; use load format "auto"'
                )
            weights = state.weights(self._options, self._folder(model_config))
            DefaultModelLoader.load_weights_and_postprocess(model, weights, device)
        return model.eval()

    def _attached(self, tree: Tree, model_config: Any) -> Any:
        """A model on the memory of a state that another engine has published; it is not processed again."""
        quantization = _get_quantization_config(model_config, self.load_config)
        with set_default_torch_dtype(model_config.dtype), torch.device("meta"):
            model = _initialize_model(model_config, self.load_config, quantization)
        state.attach(model, tree)
        IpcModelLoader._rebuild_stale_views(model)
        state.complete(model, tree)
        return model.eval()

    def _folder(self, model_config: Any) -> str | None:
        """Where the model's files are; None if a published tree is used."""
        if not self._options.files:
            return None
        path = model_config.model_path
        if os.path.exists(path):
            return str(path)
        config = self.load_config
        return str(
            download_weights_from_hf(
                path,
                config.download_dir,
                ["*.safetensors", "*.safetensors.index.json"],
                model_config.revision,
                ignore_patterns=config.ignore_patterns,
            )
        )

    def _fields(
        self, model_config: Any, device_config: Any, method: str, quantization: Any
    ) -> dict[str, Any]:
        """All that decides about the processed state: SGLang's own list, the weights, and the GPU."""
        import sglang
        from sglang.srt.runtime_context import get_exec, get_parallel

        parallel = get_parallel()
        told = (
            "tp_size", "tp_rank", "pp_size", "pp_rank", "dp_size", "moe_ep_size", "moe_ep_rank", "moe_dp_size", "moe_dp_rank",
            "attn_dp_size", "attn_cp_size", "enable_dp_lm_head", "moe_dense_tp_size",
        )  # fmt: skip
        device = torch.device(device_config.device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", int(device_config.gpu_id))
        return {
            **{key: getattr(parallel, key) for key in told},
            "moe_a2a_backend": str(get_exec().moe.moe_a2a_backend),
            "architecture": ",".join(model_config.hf_config.architectures or []),
            "model": model_config.model_path,
            "revision": model_config.revision or "",
            "dtype": str(model_config.dtype),
            "quantization": method,
            "quant_config": hash_quant_config(quantization),
            "draft": self.load_config.draft_model_idx,
            "engine": sglang.__version__,
            "source": state.source(self._options, self._folder(model_config)),
            "device": state.device_id(device),
            **compute_env_stamp(),
        }


def _verify(original: Any, config: Any) -> None:
    """Around LoadConfig's check of its load format: ours becomes the loader's class, which SGLang takes as one."""
    given = config.load_format
    if isinstance(given, str) and given.lower() == LOAD_FORMAT:
        config.load_format = CablewayModelLoader
        options(config.model_loader_extra_config)  # what is wrong with them is said at once
    else:
        original(config)


def register() -> None:
    """Tells SGLang of the load format "cableway"; what the entry point `sglang.srt.plugins` calls. May be repeated."""
    if LOAD_FORMAT not in choices.LOAD_FORMAT_CHOICES:
        choices.add_load_format_choices([LOAD_FORMAT])
        HookRegistry.register(
            "sglang.srt.configs.load_config.LoadConfig._verify_load_format",
            _verify,
            HookType.AROUND,
        )
