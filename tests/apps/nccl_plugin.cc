// What `shoal doctor` takes for a network plugin of NCCL: the beginning of its structure.
extern "C" {
struct {
  const char* name;
} ncclNetPlugin_v8 = {"a network"};
}
