/* One collective of an MPI library, timed: a peer of shoal-collective-perf. One source, built once
 * for each MPI that is there. Rank 0 prints one JSON line a size.
 *
 *   mpirun -n N mpi_collectives OPERATION ITERATIONS BYTES...
 *
 * OPERATION: all_reduce, reduce_scatter, all_gather, broadcast, all_to_all; f32, sum; out of place
 * (all_reduce, broadcast: in place). BYTES as in nccl-tests: the larger of the two buffers.
 * ITERATIONS 0: as many as take about 0.2 s. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static void run(const char* operation, float* send, float* recv, int count) {
  if (strcmp(operation, "all_reduce") == 0)
    MPI_Allreduce(MPI_IN_PLACE, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (strcmp(operation, "reduce_scatter") == 0)
    MPI_Reduce_scatter_block(send, recv, count / size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (strcmp(operation, "all_gather") == 0)
    MPI_Allgather(send, count / size, MPI_FLOAT, recv, count / size, MPI_FLOAT, MPI_COMM_WORLD);
  else if (strcmp(operation, "broadcast") == 0)
    MPI_Bcast(recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else if (strcmp(operation, "all_to_all") == 0)
    MPI_Alltoall(send, count / size, MPI_FLOAT, recv, count / size, MPI_FLOAT, MPI_COMM_WORLD);
  else {
    if (rank == 0) fprintf(stderr, "mpi_collectives: unknown operation '%s'\n", operation);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
}

static float given(const char* operation, int from, int to) { /* what `from` has for `to` */
  if (strcmp(operation, "broadcast") == 0) return from == 0 ? 7 : 0;
  return strcmp(operation, "all_to_all") == 0 ? (float)(from * size + to) : (float)(from + 1);
}

/* Wrong elements of one call with known inputs, over all ranks. */
static long check(const char* operation, float* send, float* recv, int count) {
  const int in_place = strcmp(operation, "all_reduce") == 0 || strcmp(operation, "broadcast") == 0;
  const int reduces =
      strcmp(operation, "all_reduce") == 0 || strcmp(operation, "reduce_scatter") == 0;
  const int part = count / size;
  if (part == 0 && !in_place) return 0;
  for (int j = 0; j < count; ++j)
    (in_place ? recv : send)[j] = given(operation, rank, part > 0 ? j / part % size : 0);
  run(operation, send, recv, count);
  long wrong = 0, all = 0;
  const int received = strcmp(operation, "reduce_scatter") == 0 ? part : count;
  for (int j = 0; j < received; ++j) {
    const int from = part > 0 ? j / part % size : 0;
    const float want = reduces                               ? (float)size * (float)(size + 1) / 2
                       : strcmp(operation, "broadcast") == 0 ? 7
                                                             : given(operation, from, rank);
    if (j < part * size || in_place) wrong += !(recv[j] == want);
  }
  MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  memset(send, 0, (size_t)count * 4); /* sums of sums would grow without end */
  memset(recv, 0, (size_t)count * 4);
  return all;
}

/* Seconds of one call, the mean over `times` calls and all ranks (nccl-tests' default). */
static double timed(const char* operation, float* send, float* recv, int count, long times) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (long i = 0; i < times; ++i) run(operation, send, recv, count);
  double seconds = (MPI_Wtime() - start) / (double)times, sum = 0;
  MPI_Allreduce(&seconds, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum / size;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc < 4) {
    if (rank == 0) fprintf(stderr, "usage: mpi_collectives OPERATION ITERATIONS BYTES...\n");
    MPI_Finalize();
    return 2;
  }
  for (int i = 3; i < argc; ++i) {
    const long bytes = atol(argv[i]);
    const int count = (int)(bytes / 4);
    float* send = calloc((size_t)count + 1, 4);
    float* recv = calloc((size_t)count + 1, 4);
    for (int j = 0; j < count; ++j) send[j] = recv[j] = 0; /* touched: pages are there */
    const long wrong = check(argv[1], send, recv, count);
    long times = atol(argv[2]);
    const long warm_up = bytes < (1 << 20) ? 20 : 2;
    /* As in shoal-collective-perf: 50 ms at least, so that ranks have a core each. */
    double once = timed(argv[1], send, recv, count, warm_up), warm = 0;
    while ((warm += once * (double)warm_up) < 0.05)
      once = timed(argv[1], send, recv, count, warm_up);
    if (times <= 0) {
      times = (long)(0.2 / once);
      times = times < 3 ? 3 : times > 20000 ? 20000 : times;
      MPI_Bcast(&times, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    }
    const double seconds = timed(argv[1], send, recv, count, times);
    if (rank == 0) {
      printf(
          "{\"operation\": \"%s\", \"bytes\": %ld, \"ranks\": %d, \"seconds\": %.9g, \"wrong\": "
          "%ld}\n",
          argv[1], bytes, size, seconds, wrong);
      fflush(stdout);
    }
    free(send);
    free(recv);
  }
  MPI_Finalize();
  return 0;
}
