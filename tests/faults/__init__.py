"""A test a fault, `test_fault_12_...`, and a twin, `test_twin_12_...`, which shows the harm without the protection."""
