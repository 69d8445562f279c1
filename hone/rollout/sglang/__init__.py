"""The `sglang` engine: SGLang in processes of its own. All but `arguments` needs the package."""
