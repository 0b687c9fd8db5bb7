"""What a kernel is, before anybody schedules or measures it: its blocks, and the workload it is an instance of."""
