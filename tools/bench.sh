#!/usr/bin/env bash
# ./dev bench NAME: builds one benchmark in release mode and runs it. Run from the root of the tree.
set -euo pipefail
source tools/dev-common.sh
name=$1
shift

# Current PyTorch in its own virtual environment under out/. It is created once, with a message.
peers_python() {
  if [ ! -x out/peers/bin/python ]; then
    need_packages <(echo python3-venv)
    say "installing PyTorch into out/peers (gigabytes; only benchmarks use it)"
    python3 -m venv out/peers
    out/peers/bin/pip install --quiet torch numpy transformers >&2
  fi
  echo "$PWD/out/peers/bin/python"
}

# --help builds nothing: scripts answer it directly, and programs only if they are already built.
case " $* " in
  *" --help "* | *" -h "*)
    program=build/release/bench/$name/shoal_bench_$name
    case "$name ${1:-}" in
      "collectives --peers") exec python3 bench/collectives/compare.py --help ;;
      "collectives --ddp") exec python3 bench/collectives/ddp.py --help ;;
      "collectives --ddp-train") exec python3 bench/collectives/ddp_train.py --help ;;
      "s3 --training") exec bench/s3/training_stall --help ;;
      "collectives "*) program= && set -- --help ;; # the help of all, below
      "packing "*) program=build/release/bench/train/shoal_bench_packing ;;
    esac
    if [ -n "$program" ]; then
      [ -x "$program" ] || build_preset release "${program##*/}"
      exec "$program" --help
    fi
    ;;
esac

case "$name" in
  kernels | tokenizer | loader)
    build_preset release "shoal_bench_$name"
    exec "build/release/bench/$name/shoal_bench_$name" "$@"
    ;;
  s3)
    # --training [ARGS]: the time that steps wait if every answer takes 200 ms.
    if [ "${1:-}" = --training ]; then
      build_preset release shoal
      exec bench/s3/training_stall build/release/apps/shoal "${@:2}"
    fi
    need_packages <(echo "nginx-light  # serves what is read")
    build_preset release shoal_bench_s3
    exec bench/s3/beside_nginx build/release/bench/s3/shoal_bench_s3 "$@"
    ;;
  parallel)
    # Layouts on two ranks of this host. --bubbles (with sleeping stages) and --memory (one step) use four.
    build_preset release shoal_bench_parallel
    ranks=2
    case " $* " in *" --bubbles "* | *" --memory "*) ranks=4 ;; esac
    exec mpirun -n "$ranks" --oversubscribe --bind-to none build/release/bench/parallel/shoal_bench_parallel "$@"
    ;;
  packing)
    build_preset release shoal_bench_packing
    exec build/release/bench/train/shoal_bench_packing "$@"
    ;;
  train)
    # --peers without a path uses the peers that this script installs; --peers PYTHON uses others.
    arguments=() dtypes=(f32 bf16)
    while [ $# -gt 0 ]; do
      case "$1" in
        --peers)
          if [ $# -gt 1 ] && [ "${2#-}" = "$2" ]; then
            arguments+=(--peers "$2"); shift
          else
            arguments+=(--peers "${SHOAL_PEERS_PYTHON:-$(peers_python)}")
          fi
          ;;
        --dtype) dtypes=("$2"); shift ;;
        *) arguments+=("$1") ;;
      esac
      shift
    done
    build_preset release shoal_bench_train shoal_bench_training_step
    for dtype in "${dtypes[@]}"; do
      build/release/bench/train/shoal_bench_train --dtype "$dtype" "${arguments[@]}"
    done
    ;;
  collectives)
    # --peers [ARGS]: compared with Open MPI, MPICH and gloo, on this host or on an emulated cluster.
    if [ "${1:-}" = --peers ]; then
      shift
      need_packages tools/packages-peers.txt
      configure_preset release
      targets=()
      for target in shoal_peer_open_mpi shoal_peer_mpich_program shoal_peer_gloo; do
        ! ninja -C build/release -t query "$target" > /dev/null 2>&1 || targets+=("$target")
      done
      build_preset release shoal-collective-perf "${targets[@]}"
      exec python3 bench/collectives/compare.py "$@"
    fi
    # --ddp [ARGS]: a data-parallel step compared with PyTorch's DistributedDataParallel over gloo.
    if [ "${1:-}" = --ddp ]; then
      shift
      build_preset release shoal_bench_ddp_step
      case " $* " in *" --python "*) ;; *) set -- --python "${SHOAL_PEERS_PYTHON:-$(peers_python)}" "$@" ;; esac
      exec python3 bench/collectives/ddp.py "$@"
    fi
    # --ddp-train [ARGS]: GPT-2 trained by both, including the computation.
    if [ "${1:-}" = --ddp-train ]; then
      shift
      build_preset release shoal
      case " $* " in *" --python "*) ;; *) set -- --python "${SHOAL_PEERS_PYTHON:-$(peers_python)}" "$@" ;; esac
      exec python3 bench/collectives/ddp_train.py "$@"
    fi
    case "${1:-}" in
      -h | --help)
        cat << 'TEXT'
./dev bench collectives [ARGS]         native beside MPI_Allreduce, two ranks of this host: one JSON line a size,
                                       then how much of a reduction a computation hides; ARGS are
                                       --min-bytes N, --max-bytes N, --rounds N, --no-overlap
./dev bench collectives --peers [ARGS] Open MPI, MPICH and gloo on the same sizes, turn by turn, with ratios
./dev bench collectives --ddp [ARGS]   a data-parallel step beside PyTorch's DistributedDataParallel
./dev bench collectives --ddp-train [ARGS]  GPT-2 trained by both, computation and all
--peers --help, --ddp --help and --ddp-train --help list their ARGS. One operation alone: shoal-collective-perf --help.
TEXT
        exit 0
        ;;
      --min-bytes* | --max-bytes* | --rounds* | --no-overlap) ;;
      ?*)
        echo "./dev bench collectives: there is no '$1'; see --help" >&2
        exit 2
        ;;
    esac
    build_preset release shoal_bench_collectives
    exec mpirun -n 2 --bind-to none build/release/bench/collectives/shoal_bench_collectives "$@"
    ;;
esac
