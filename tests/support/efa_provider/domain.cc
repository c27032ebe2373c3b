#include "domain.h"

#include <algorithm>
#include <cstring>

#include "addresses.h"
#include "endpoint.h"
#include "gpu.h"
#include "info.h"
#include "queue.h"
#include <rdma/fi_errno.h>

namespace shoal::test::efa {
namespace {

int close_memory(fid* object) {
  auto* memory = static_cast<Memory*>(reinterpret_cast<fid_mr*>(object));
  {
    const std::lock_guard lock(memory->domain->mutex);
    memory->domain->memory.remove(memory->key);
    --memory->domain->children;
  }
  delete memory;
  return FI_SUCCESS;
}

int register_attributes(fid* object, const fi_mr_attr* attributes, std::uint64_t flags,
                        fid_mr** made) {
  auto* domain = static_cast<Domain*>(reinterpret_cast<fid_domain*>(object));
  if (flags != 0 || attributes->iov_count != 1) return -FI_EINVAL;
  const void* const base = attributes->mr_iov[0].iov_base;
  const std::size_t length = attributes->mr_iov[0].iov_len;
  if (attributes->iface == FI_HMEM_CUDA) {
    if (!domain->hmem) return -FI_EOPNOTSUPP;
    // The driver answers for the calling thread's current context.
    const int wanted = attributes->device.cuda;
    if (Gpu::get().is_there()
            ? Gpu::get().device_of(base, length) != wanted || Gpu::get().current_device() != wanted
            : wanted != 0)
      return -FI_EINVAL;
  } else if (attributes->iface != FI_HMEM_SYSTEM) {
    return -FI_ENOSYS;
  } else if (Gpu::get().device_of(base, length) >= 0) {
    return -EFAULT;  // the host maps no page there
  }
  constexpr std::uint64_t kKnown =
      FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  if ((attributes->access & ~kKnown) != 0) return -FI_EINVAL;
  static fi_ops operations = only_close(close_memory);
  auto* memory = new Memory{};
  memory->fid = {FI_CLASS_MR, attributes->context, &operations};
  memory->domain = domain;
  memory->start = reinterpret_cast<std::uint64_t>(base);
  memory->bytes = length;
  memory->access = attributes->access;
  memory->of_gpu = attributes->iface == FI_HMEM_CUDA;
  const std::lock_guard lock(domain->mutex);
  memory->key = domain->memory.add(memory);
  memory->mem_desc = reinterpret_cast<void*>(memory->key);  // NOLINT(performance-no-int-to-ptr)
  ++domain->children;
  *made = memory;
  return FI_SUCCESS;
}

int register_vector(fid* object, const iovec* vector, std::size_t count, std::uint64_t access,
                    std::uint64_t, std::uint64_t, std::uint64_t flags, fid_mr** made,
                    void* context) {
  fi_mr_attr attributes{};
  attributes.mr_iov = vector;
  attributes.iov_count = count;
  attributes.access = access;
  attributes.context = context;
  return register_attributes(object, &attributes, flags, made);
}

int register_buffer(fid* object, const void* buffer, std::size_t bytes, std::uint64_t access,
                    std::uint64_t offset, std::uint64_t key, std::uint64_t flags, fid_mr** made,
                    void* context) {
  const iovec one{const_cast<void*>(buffer), bytes};
  return register_vector(object, &one, 1, access, offset, key, flags, made, context);
}

int close_domain(fid* object) {
  auto* domain = static_cast<Domain*>(reinterpret_cast<fid_domain*>(object));
  {
    const std::lock_guard lock(domain->mutex);
    if (domain->children > 0) return -FI_EBUSY;
  }
  --domain->fabric.domains;
  delete domain;
  return FI_SUCCESS;
}

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** made, void* context) {
  if (!info->domain_attr || !info->domain_attr->name) return -FI_EINVAL;
  const std::vector<Card> cards = find_cards();
  const auto card = std::ranges::find(cards, info->domain_attr->name, &Card::domain);
  if (card == cards.end()) return -FI_ENODEV;
  static fi_ops operations = only_close(close_domain);
  static fi_ops_domain opens{.size = sizeof(fi_ops_domain),
                             .av_open = open_addresses,
                             .cq_open = open_queue,
                             .endpoint = open_endpoint,
                             .scalable_ep = not_offered,
                             .cntr_open = not_offered,
                             .poll_open = not_offered,
                             .stx_ctx = not_offered,
                             .srx_ctx = not_offered,
                             .query_atomic = not_offered,
                             .query_collective = not_offered,
                             .endpoint2 = not_offered};
  static fi_ops_mr registers{.size = sizeof(fi_ops_mr),
                             .reg = register_buffer,
                             .regv = register_vector,
                             .regattr = register_attributes};
  auto* domain = new Domain(*static_cast<Fabric*>(fabric), *card, *info);
  domain->fid = {FI_CLASS_DOMAIN, context, &operations};
  domain->ops = &opens;
  domain->mr = &registers;
  ++domain->fabric.domains;
  *made = domain;
  return FI_SUCCESS;
}

int close_fabric(fid* object) {
  auto* fabric = static_cast<Fabric*>(reinterpret_cast<fid_fabric*>(object));
  if (fabric->domains > 0) return -FI_EBUSY;
  delete fabric;
  return FI_SUCCESS;
}

}  // namespace

int no_bind(fid*, fid*, std::uint64_t) { return -FI_ENOSYS; }
int no_control(fid*, int, void*) { return -FI_ENOSYS; }
int no_ops_open(fid*, const char*, std::uint64_t, void**, void*) { return -FI_ENOSYS; }

fi_ops only_close(int (*close)(fid*)) {
  return {.size = sizeof(fi_ops),
          .close = close,
          .bind = no_bind,
          .control = no_control,
          .ops_open = no_ops_open,
          .tostr = nullptr,
          .ops_set = nullptr};
}

std::uint64_t MemoryTable::add(Memory* memory) {
  next_ += 0x11;  // keys are not consecutive, so a key that is off by one is found
  by_key_[next_] = memory;
  return next_;
}

bool MemoryTable::covers(std::uint64_t key, std::uint64_t start, std::uint64_t bytes,
                         std::uint64_t access) const {
  const Memory* found = find(key);
  if (!found) return false;
  const Memory& memory = *found;
  return (access & ~memory.access) == 0 && start >= memory.start && bytes <= memory.bytes &&
         start - memory.start <= memory.bytes - bytes;
}

const Memory* MemoryTable::find(std::uint64_t key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : found->second;
}

bool MemoryTable::touches_gpu(std::uint64_t start, std::uint64_t bytes) const {
  return std::ranges::any_of(by_key_, [&](const auto& entry) {
    const Memory& memory = *entry.second;
    return memory.of_gpu && start < memory.start + memory.bytes && memory.start < start + bytes;
  });
}

bool Domain::is_of_gpu(const void* start, std::size_t bytes) const {
  return Gpu::get().device_of(start, bytes) >= 0 ||
         memory.touches_gpu(reinterpret_cast<std::uint64_t>(start), bytes);
}

std::span<const std::byte> Domain::read(std::uint64_t key, const std::byte* start,
                                        std::size_t bytes, std::vector<std::byte>& room) const {
  const Memory* const region = memory.find(key);
  if (!region || !region->of_gpu) return {start, bytes};
  room.resize(bytes);
  Gpu::get().read(room.data(), start, bytes);
  return room;
}

void Domain::write(std::uint64_t key, void* to, std::span<const std::byte> bytes) const {
  const Memory* const region = memory.find(key);
  if (region && region->of_gpu)
    Gpu::get().write(to, bytes);
  else if (!bytes.empty())
    std::memcpy(to, bytes.data(), bytes.size());
}

Domain::Domain(Fabric& its_fabric, const Card& its_card, const fi_info& info)
    : fid_domain{},
      fabric(its_fabric),
      card(its_card),
      options(read_options()),
      direct(is_direct(info)),
      registers_locally((info.domain_attr->mr_mode & FI_MR_LOCAL) != 0),
      hmem((info.caps & FI_HMEM) != 0) {}

Domain::~Domain() {
  {
    const std::lock_guard lock(mutex);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Domain::start_card() {
  if (!thread_.joinable()) thread_ = std::thread([this] { run_card(); });
}

void Domain::run_card() {
  std::unique_lock lock(mutex);
  while (!stop_.wait_for(lock, std::chrono::milliseconds(1), [this] { return stopping_; }))
    for (Endpoint* endpoint : endpoints) endpoint->progress_of_the_card();
}

int open_fabric(fi_fabric_attr* attributes, fid_fabric** made, void* context) {
  if (!attributes->name || (std::strcmp(attributes->name, kFabricName) != 0 &&
                            std::strcmp(attributes->name, kDirectFabricName) != 0))
    return -FI_ENODATA;
  static fi_ops operations = only_close(close_fabric);
  static fi_ops_fabric opens{.size = sizeof(fi_ops_fabric),
                             .domain = open_domain,
                             .passive_ep = not_offered,
                             .eq_open = not_offered,
                             .wait_open = not_offered,
                             .trywait = not_offered,
                             .domain2 = not_offered};
  auto* fabric = new Fabric{};
  fabric->fid = {FI_CLASS_FABRIC, context, &operations};
  fabric->ops = &opens;
  fabric->api_version = attributes->api_version;
  *made = fabric;
  return FI_SUCCESS;
}

}  // namespace shoal::test::efa
