#include "queue.h"

#include <cstring>
#include <mutex>

#include "domain.h"
#include "endpoint.h"
#include "wire.h"
#include <rdma/fi_errno.h>

namespace shoal::test::efa {
namespace {

constexpr std::size_t kDefaultEntries = 1024;

std::size_t entry_bytes(fi_cq_format format) {
  switch (format) {
    case FI_CQ_FORMAT_MSG:
      return sizeof(fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA:
      return sizeof(fi_cq_data_entry);
    default:
      return sizeof(fi_cq_entry);
  }
}

ssize_t read_from(fid_cq* cq, void* buffer, std::size_t count, fi_addr_t* sources) {
  auto& queue = *static_cast<Queue*>(cq);
  const std::lock_guard lock(queue.domain->mutex);
  for (Endpoint* endpoint : queue.endpoints) endpoint->progress();
  if (!queue.entries.empty() && queue.entries.front().failed) return -FI_EAVAIL;
  if (queue.entries.empty()) return queue.overrun ? -FI_EOVERRUN : -FI_EAGAIN;
  // Every entry format is a prefix of the next larger one, and all are prefixes of fi_cq_err_entry.
  const std::size_t bytes = entry_bytes(queue.format);
  std::size_t taken = 0;
  for (; taken < count && !queue.entries.empty() && !queue.entries.front().failed; ++taken) {
    const Completed& completed = queue.entries.front();
    std::memcpy(static_cast<std::byte*>(buffer) + taken * bytes, &completed.entry, bytes);
    if (sources) sources[taken] = completed.source;
    queue.entries.pop_front();
  }
  return static_cast<ssize_t>(taken);
}

ssize_t read(fid_cq* cq, void* buffer, std::size_t count) {
  return read_from(cq, buffer, count, nullptr);
}

ssize_t read_error(fid_cq* cq, fi_cq_err_entry* entry, std::uint64_t) {
  auto& queue = *static_cast<Queue*>(cq);
  const std::lock_guard lock(queue.domain->mutex);
  if (queue.entries.empty() || !queue.entries.front().failed) return -FI_EAGAIN;
  *entry = queue.entries.front().entry;
  queue.entries.pop_front();
  return 1;
}

const char* error_text(fid_cq*, int code, const void*, char* buffer, std::size_t bytes) {
  const char* text = "Unknown error";
  switch (static_cast<Status>(code)) {
    case Status::ok:
      text = "Success";
      break;
    case Status::invalid_local_key:
      text =
          "Local memory registration is invalid, has insufficient access flags or does not match";
      break;
    case Status::bad_remote_address:
      text =
          "Remote memory registration is invalid, has insufficient access flags or does not match";
      break;
    case Status::bad_remote_length:
      text = "Remote receive buffer too short";
      break;
    case Status::unknown_peer:
      text = "Remote has not inserted our address";
      break;
  }
  if (buffer && bytes > 0) {
    std::strncpy(buffer, text, bytes - 1);
    buffer[bytes - 1] = '\0';
  }
  return text;
}

int close_queue(fid* object) {
  auto* queue = static_cast<Queue*>(reinterpret_cast<fid_cq*>(object));
  {
    const std::lock_guard lock(queue->domain->mutex);
    if (!queue->endpoints.empty()) return -FI_EBUSY;
    --queue->domain->children;
  }
  delete queue;
  return FI_SUCCESS;
}

}  // namespace

void Queue::push(const Completed& completed) {
  if (entries.size() >= size) overrun = true;
  if (!overrun) entries.push_back(completed);
}

int open_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** made, void* context) {
  // EFA in libfabric 1.17 has no wait object.
  if (attributes->wait_obj != FI_WAIT_NONE || attributes->flags != 0) return -FI_ENOSYS;
  if (attributes->format == FI_CQ_FORMAT_TAGGED) return -FI_ENOSYS;
  static fi_ops operations = only_close(close_queue);
  static fi_ops_cq calls{.size = sizeof(fi_ops_cq),
                         .read = read,
                         .readfrom = read_from,
                         .readerr = read_error,
                         .sread = not_offered,
                         .sreadfrom = not_offered,
                         .signal = not_offered,
                         .strerror = error_text};
  auto* queue = new Queue{};
  queue->fid = {FI_CLASS_CQ, context, &operations};
  queue->ops = &calls;
  queue->domain = static_cast<Domain*>(domain);
  queue->size = attributes->size == 0 ? kDefaultEntries : attributes->size;
  queue->format = attributes->format;
  const std::lock_guard lock(queue->domain->mutex);
  ++queue->domain->children;
  *made = queue;
  return FI_SUCCESS;
}

}  // namespace shoal::test::efa
