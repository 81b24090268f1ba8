"""What a build leaves where the GPU is missing, so that another machine finishes it."""
