"""The place of answers: `batches` sorts, cuts and pads on the host, `placement` lays rows and weights on devices."""
