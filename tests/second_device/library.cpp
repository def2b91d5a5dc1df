// All of the second device as one unit: torch's headers, most of what there is to compile, are read once.
#include "device.cpp"
#include "kernels.cpp"
#include "memory.cpp"
#include "nccl.cpp"
#include "order.cpp"
