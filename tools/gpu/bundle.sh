#!/usr/bin/env bash
# ./dev gpu bundle [PROGRAM...]: builds the preset `gpu` and packs the files that a bare machine with a GPU needs into
# build/gpu-bundle (shoal-gpu.tar.xz and run.sh): programs, their shared objects except those of glibc and CUDA, golden
# files, the runner and the peers. Run from the root of the tree.
set -euo pipefail
source tools/dev-common.sh
limit_mib=50

# The programs to pack: those of this list that the tree has, or those named as arguments.
programs=(kernels_test gpu_test gpu_train_test gpu_multirank_test gpu_train_ranks_test collectives_device_test collectives_nccl_test nn_autograd_test nn_layers_test nn_models_test nn_optim_test nn_capture_test
  runtime_device_test runtime_memory_test
  parallel_device_test parallel_data_test parallel_executor_test parallel_tensor_test parallel_shard_test
  parallel_activation_test parallel_apply_test
  gpt2_gpu_step shoal_bench_gpu)
[ $# -eq 0 ] || programs=("$@")

configure_preset gpu
known=$(ninja -C build/gpu -t targets all | sed -n 's/: phony$//p')
targets=()
for name in "${programs[@]}"; do
  if grep -qx "$name" <<< "$known"; then targets+=("$name"); else echo "    not in this tree: $name" >&2; fi
done
build_preset gpu "${targets[@]}"

say "packing"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage"/{bin,lib,lib-runtime,tools,tests,docs,bench}
for name in "${targets[@]}"; do
  binary=$(find build/gpu -type f -name "$name" -perm -u+x -print -quit)
  strip -o "$stage/bin/$name" "$binary"
done
# All libraries that the programs load, except those of glibc, CUDA and the driver. The compiler's runtime gets its own
# directory, for machines with an older one. libfabric, where the build has it, is not linked
# (collectives/transport/fabric/library.h).
fabric=build/gpu/collectives/transport/fabric/libfabric.so.1
[ ! -f "$fabric" ] || cp "$fabric" "$stage/lib/"
find "$stage/bin" "$stage/lib" -type f -exec ldd {} \; | awk '/=> \// {print $1, $3}' | sort -u |
  while read -r name path; do
    case "$name" in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | ld-linux* | libutil.so.*) ;;
      libcuda* | libcublas* | libcudnn* | libnccl* | libnv*) ;;
      libstdc++.so.* | libgcc_s.so.*) cp -L "$path" "$stage/lib-runtime/$name" ;;
      *) cp -L "$path" "$stage/lib/$name" ;;
    esac
  done
chmod -R u+w "$stage"
strip --strip-unneeded "$stage"/lib/* 2> /dev/null || true
cp -r tools/gpu "$stage/tools/gpu"
cp -r tests/golden "$stage/tests/golden"
cp -r bench/gpu "$stage/bench/gpu"
find "$stage" -name __pycache__ -prune -exec rm -rf {} +
printf '{"commit": "%s", "changed": %s, "date": "%s", "nvcc": "%s", "cudnn": "%s"}\n' \
  "$(git rev-parse HEAD)" "$(git diff --quiet HEAD && echo false || echo true)" "$(date -u +%FT%TZ)" \
  "$(sed -n 's/^set(CMAKE_CUDA_COMPILER_VERSION "\(.*\)").*/\1/p' build/gpu/CMakeFiles/*/CMakeCUDACompiler.cmake)" \
  "$(sed -n 's/^#define CUDNN_\(MAJOR\|MINOR\|PATCHLEVEL\) //p' "$(sed -n 's/^cuDNN_INCLUDE_DIR:[A-Z]*=//p' build/gpu/CMakeCache.txt)/cudnn_version.h" | paste -sd.)" \
  > "$stage/BUILD.json"

mkdir -p build/gpu-bundle
# Each program contains the same kernels. With a large dictionary they are stored once (33 MiB instead of 73 with xz's
# default of 8 MiB), which takes minutes.
tar -C "$stage" --sort=name --mtime=@0 --owner=0 --group=0 -cf - . | xz -T1 --lzma2=preset="${SHOAL_BUNDLE_XZ:-5}",dict=512MiB > build/gpu-bundle/shoal-gpu.tar.xz
cp tools/gpu/run.sh build/gpu-bundle/run.sh
mib=$(($(stat -c %s build/gpu-bundle/shoal-gpu.tar.xz) >> 20))
[ "$mib" -lt "$limit_mib" ] || die "the bundle takes $mib MiB; $limit_mib are allowed"
say "build/gpu-bundle: $mib MiB, ${#targets[@]} programs; on the machine: build/gpu-bundle/run.sh unit --out DIRECTORY"
