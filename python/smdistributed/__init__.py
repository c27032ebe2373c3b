"""SageMaker's names for distributed training, over Shoal."""
