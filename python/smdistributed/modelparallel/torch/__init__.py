"""SageMaker's model parallelism for PyTorch models, which Shoal does not have."""
raise ImportError(
    "smdistributed.modelparallel.torch: Shoal does not split PyTorch models. transformers imports it for jobs "
    "that enable modelparallel: leave that out of the job's distribution, or train with `shoal train`, which "
    "splits the models that it knows")
