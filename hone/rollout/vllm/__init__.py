"""The `vllm` engine: vLLM in processes of its own. `engine` and what it imports need the package; nothing else does."""
