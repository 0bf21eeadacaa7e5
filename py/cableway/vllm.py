"""`load_format="cableway"` for vLLM: engines on one machine read a model once, and engines on one GPU share its memory.

The plugin is known to vLLM as soon as cableway is installed beside it::

    vllm serve /models/llm --load-format cableway --model-loader-extra-config '{"name": "llm", "keep": true}'

Options are `name`, `files`, `keep` and `share` (the guide's page "Models" has them). For vLLM from 0.33 on.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from cableway._engines import state
from cableway._engines.options import options
from cableway.tree import Tree

try:
    import torch
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.model_executor.model_loader.utils import (
        initialize_model,
        process_weights_after_loading,
    )
    from vllm.model_executor.model_loader.weight_cache.protocol import (
        UnsupportedQuantForIPCError,
        WeightCacheKey,
        check_ipc_quant_support,
    )
    from vllm.model_executor.model_loader.weight_cache.utils import export_model_attrs
    from vllm.model_executor.model_loader.weight_utils import download_weights_from_hf
    from vllm.model_executor.utils import weights_already_processed
    from vllm.utils.torch_utils import set_default_torch_dtype
except ImportError as error:
    raise ImportError(
        f"cableway.vllm needs vLLM, 0.33 or later, with PyTorch: pip install 'vllm>=0.33' ({error})"
    ) from error

__all__ = ["CablewayModelLoader", "register"]

LOAD_FORMAT = "cableway"


class CablewayModelLoader(BaseModelLoader):  # type: ignore[misc]
    """Loads models of vLLM from trees of cableway.

    The first engine takes the weights from the tree (which `cableway.load` fills from the model's files, once for all who ask),
    lets vLLM split and process them, and publishes what came out. Later engines with the same model and settings on the same GPU
    get that memory, read-only and without a copy. It blocks while another process reads the files.

    Args:
        load_config: of vLLM; its `model_loader_extra_config` has the options.

    Raises:
        ValueError: a bad option; the text says which there are.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self._options = options(load_config.model_loader_extra_config)
        self._shared: frozenset[int] = frozenset()  # addresses of parameters that nobody may write

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        """Bytes of this engine's weights that are in GPU memory already, because another engine has published them."""
        model_config = vllm_config.model_config
        if self._options.share != "state":
            return 0
        tree = state.find(*self._key(vllm_config, model_config))
        return 0 if tree is None else tree.nbytes

    def download_model(self, model_config: Any) -> None:
        """Downloads the model's .safetensors files if they are not here. They are not read yet."""
        self._folder(model_config)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Fills a model's own memory from the tree of weights.

        Raises:
            ValueError: the model takes weights from several places, or from some that are not in the tree; or its memory is
                shared, and must not be written.
        """
        if getattr(model, "secondary_weights", None) or getattr(
            model, "allow_patterns_overrides", None
        ):
            raise ValueError(
                f"{type(model).__name__} takes weights from several places, which load format "
                f'"{LOAD_FORMAT}" does not know; use load format "auto"'
            )
        if any(parameter.data_ptr() in self._shared for parameter in model.parameters()):
            raise ValueError(
                "this engine shares its weights, which nobody may write; to load others into a running engine use "
                '"share": "weights" in model_loader_extra_config'
            )
        loaded = model.load_weights(self._weights(model_config))
        lacking = {name for name, _ in model.named_parameters()} - (loaded or set())
        if loaded is not None and lacking and model_config.quantization is None:
            raise ValueError(f"not in the tree of weights: {', '.join(sorted(lacking)[:4])}")

    def create_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        """The model with memory of its own; refused before anything is loaded if it cannot be shared afterwards."""
        model = super().create_model(vllm_config, model_config, prefix)
        self._check(model)
        return model

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        """The model, ready to run.

        Raises:
            ValueError: what this engine wants does not go with shared weights (sleep mode, EPLB, some quantizations); the text
                says how to go on without.
            NameTaken: the name means other files.
            cableway.Error: a published state does not fit.
        """
        if self._options.share != "state":
            return super().load_model(vllm_config, model_config, prefix)
        for wanted, what in (
            (getattr(model_config, "enable_sleep_mode", False), "sleep mode"),
            (getattr(vllm_config.parallel_config, "enable_eplb", False), "EPLB"),
        ):
            if wanted:
                raise ValueError(
                    f'{what} moves or writes weights, which cannot be shared then; use "share": "weights" in '
                    "model_loader_extra_config"
                )
        name, fields = self._key(vllm_config, model_config)
        tree = state.find(name, fields)
        if tree is None:
            model = super().load_model(vllm_config, model_config, prefix)
            extra = {"attributes": export_model_attrs(model)}
            tree = state.share(name, model, fields, keep=self._options.keep, extra=extra)
        else:
            model = self._attached(tree, vllm_config, model_config, prefix)
        self._shared = frozenset(
            parameter.data_ptr() for parameter in model.parameters() if parameter.numel()
        )
        return model

    def _attached(self, tree: Tree, vllm_config: Any, model_config: Any, prefix: str) -> Any:
        """A model on the memory of a state that another engine has published."""
        device = self.load_config.device or vllm_config.device_config.device
        with set_default_torch_dtype(model_config.dtype):
            with torch.device("meta"):
                model = initialize_model(
                    vllm_config=vllm_config, model_config=model_config, prefix=prefix
                )
            self._check(model)
            state.attach(model, tree)
            for attribute, value in tree.meta["extra"]["attributes"].items():
                setattr(model, attribute, value)
            with weights_already_processed():
                process_weights_after_loading(model, model_config, torch.device(device))
            state.complete(model, tree)
        return model.eval()

    def _check(self, model: Any) -> None:
        if self._options.share != "state":
            return
        try:
            check_ipc_quant_support(model)
        except UnsupportedQuantForIPCError as error:
            raise ValueError(
                f'{error} Use "share": "weights" in model_loader_extra_config'
            ) from error

    def _folder(self, model_config: Any) -> str | None:
        """Where the model's files are; None if a published tree is used."""
        if not self._options.files:
            return None
        model = getattr(model_config, "model_weights", None) or model_config.model
        if os.path.exists(model):
            return str(model)
        config = self.load_config
        return str(
            download_weights_from_hf(
                model,
                config.download_dir,
                ["*.safetensors", "*.safetensors.index.json"],
                model_config.revision,
                ignore_patterns=config.ignore_patterns,
            )
        )

    def _weights(self, model_config: Any) -> Iterator[tuple[str, Any]]:
        return state.weights(self._options, self._folder(model_config))

    def _key(self, vllm_config: Any, model_config: Any) -> tuple[str, dict[str, Any]]:
        """Name of the processed state, and all that decides about it: vLLM's own list, the weights, and the GPU."""
        from vllm.distributed import (
            get_dp_group,
            get_pp_group,
            get_tensor_model_parallel_rank,
            get_tensor_model_parallel_world_size,
        )

        data, pipeline = get_dp_group(), get_pp_group()
        parallel = vllm_config.parallel_config
        speculative = vllm_config.speculative_config
        key = WeightCacheKey.from_model_config(
            model_config,
            cache_config=vllm_config.cache_config,
            tp_size=get_tensor_model_parallel_world_size(),
            tp_rank=get_tensor_model_parallel_rank(),
            pp_size=pipeline.world_size,
            pp_rank=pipeline.rank_in_group,
            dp_size=data.world_size,
            dp_rank=data.rank_in_group,
            is_draft=speculative is not None and model_config is speculative.draft_model_config,
            enable_expert_parallel=parallel.enable_expert_parallel,
            expert_placement_strategy=parallel.expert_placement_strategy,
            kernel_config=vllm_config.kernel_config,
        )
        fields = dataclasses.asdict(key)
        fields["source"] = state.source(self._options, self._folder(model_config))
        fields["device"] = state.device_id(
            self.load_config.device or vllm_config.device_config.device
        )
        return state.name_of(self._options, "vllm", fields), fields


def register() -> None:
    """Tells vLLM of the load format "cableway"; what the entry point `vllm.general_plugins` calls. May be repeated."""
    from vllm.model_executor import model_loader

    if model_loader._LOAD_FORMAT_TO_MODEL_LOADER.get(LOAD_FORMAT) is not CablewayModelLoader:
        register_model_loader(LOAD_FORMAT)(CablewayModelLoader)
