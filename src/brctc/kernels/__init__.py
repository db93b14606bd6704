"""The criteria, `ctc` and `transducer`, each as a reference, for the CPU and for Triton."""
