// Everything that `shoal train` does, in one call: mpirun -n 4 fine_tune run.json --max_steps 100
#include <shoal/shoal.h>

int main(int argc, char** argv) { return shoal::train({argv + 1, argv + argc}); }
