"""SageMaker's model-parallel library, over Shoal."""
__version__ = "1.15.0"  # the SMP version whose names this package has; transformers 5 requires 1.10
