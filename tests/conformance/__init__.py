"""SGLang's own Triton kernels as an oracle for specc's."""
