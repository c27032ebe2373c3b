"""SageMaker's model-parallel library, over Shoal."""
__version__ = "1.15.0"  # the version of SMP whose names these are: transformers 5 asks for 1.10 or newer
