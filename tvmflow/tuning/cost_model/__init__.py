"""Cost models: predict a kernel's time from its TIR and assembly."""
