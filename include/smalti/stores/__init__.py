"""Where objects are kept: a file system, Google Cloud Storage. `smalti.objects` is what everybody else uses."""
