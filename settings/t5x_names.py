"""Names of settings in T5X, and how each is set here, for documentation and error messages."""

NAMES = {
    "MODEL_DIR": "RUN_DIR, or CHECKPOINT_DIR for a bucket",
    "TRAIN_STEPS": "STEPS",
    "BATCH_SIZE": "training.Run.batch_size",
    "TASK_FEATURE_LENGTHS": "training.Run.sequence_lengths, by the model's stacks, such as "
    "{'encoder': 512, 'decoder': 114}",
    "MIXTURE_OR_TASK_NAME": "MIXTURE_OR_TASK_NAME, with --gin_file=corpora/seqio_task.gin",
    "MIXTURE_OR_TASK_MODULE": "MODULE, with --gin_file=corpora/seqio_task.gin",
    "USE_CACHED_TASKS": "USE_CACHED_TASKS, with --gin_file=corpora/seqio_task.gin; the folders "
    "with caches are CACHE_DIRS",
    "INITIAL_CHECKPOINT_PATH": "training.Run.initial_run, or INITIAL_RUN in the fine-tuning runs",
    "utils.RestoreCheckpointConfig.assignment_map": "training.Run.assignment_map, a mapping from "
    "patterns of names here to names there",
    "DROPOUT_RATE": "the dropout_rate of the model, such as models.encoder_decoder.dropout_rate",
    "LOSS_NORMALIZING_FACTOR": "not needed, since each term of a loss is divided by its weights",
    "partitioning.PjitPartitioner.num_partitions": "mesh.make_mesh.tensor; mesh.make_mesh.fsdp "
    "shards the parameters",
    "trainer.Trainer.num_microbatches": "training.Run.microbatches",
    "train_script.train.eval_period": "training.Run.evaluate_every",
    "utils.SaveCheckpointConfig.period": "training.Run.checkpoint_every",
    "utils.SaveCheckpointConfig.keep": "training.Run.keep_checkpoints; keep_every and keep_best "
    "keep further checkpoints",
}
