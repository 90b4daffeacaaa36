"""Our own engine, `fsd_decoding`, in this process and in workers."""
