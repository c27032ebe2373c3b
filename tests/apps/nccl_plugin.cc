// `shoal doctor` takes this for an NCCL network plugin: it has the beginning of a
// plugin's structure.
extern "C" {
struct {
  const char* name;
} ncclNetPlugin_v8 = {"a network"};
}
