"""A run's newest weights as a safetensors file, with our names or Hugging Face's; trains nothing.

python -m minitrain.export runs/train gpt.safetensors
"""

if __name__ == "__main__":
    import sys

    from minitrain.trainer.tools import export

    sys.exit(export())
