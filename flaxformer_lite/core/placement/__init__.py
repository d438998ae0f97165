"""The place where answers are computed: `batches` sorts, cuts and pads on the host, `placement` lays rows and weights on devices."""
