"""What tools/bench/multi_gpu is made of. Needs a python3 with torch and nothing else."""
