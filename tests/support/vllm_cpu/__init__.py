"""What makes vLLM run in .venv-vllm, which has no GPU. `make vllm` puts `cpu_torchvision` there."""
