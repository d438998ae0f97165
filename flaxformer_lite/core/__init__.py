"""The functional core: everything that decides a number between token ids and token ids.

Nothing here opens a file, starts a process or a thread, prints, or asks the machine anything but JAX's devices. From the bottom:

    base                  bounds of settings, names
    text                  ids, the interface of a tokenizer, languages
    reading               what answers of models of one pass need, without JAX
    parallel, optim       meshes and shardings; optimizers, schedules
    model                 layers, stacks, attention, its kernels and caches
    data                  records, rows, the plan of batches
    search                settings of decoding, searches, the decoder of token ids
    objectives            from records to rows, from outputs to losses
    step, runners         one optimizer step, compiled for the devices
"""
