// libfabric's call tables for an endpoint.
#include <mutex>
#include <system_error>

#include "domain.h"
#include "endpoint.h"
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

namespace shoal::test::efa {
namespace {

Endpoint& of(fid_ep* ep) { return *static_cast<Endpoint*>(ep); }
Endpoint& of(fid* object) { return of(reinterpret_cast<fid_ep*>(object)); }

ssize_t post(fid_ep* ep, const Post& wanted) {
  const std::lock_guard lock(of(ep).domain.mutex);
  return of(ep).post(wanted);
}

// ---- messages

ssize_t receive(fid_ep* ep, void* buffer, std::size_t bytes, void* descriptor, fi_addr_t,
                void* context) {
  const std::lock_guard lock(of(ep).domain.mutex);
  return of(ep).post_receive(buffer, bytes, descriptor, context);
}

ssize_t receive_vector(fid_ep* ep, const iovec* vector, void** descriptors, std::size_t count,
                       fi_addr_t from, void* context) {
  if (count > 1) return -FI_EINVAL;
  if (count == 0) return receive(ep, nullptr, 0, nullptr, from, context);
  return receive(ep, vector->iov_base, vector->iov_len, descriptors ? *descriptors : nullptr, from,
                 context);
}

ssize_t receive_message(fid_ep* ep, const fi_msg* message, std::uint64_t) {
  return receive_vector(ep, message->msg_iov, message->desc, message->iov_count, message->addr,
                        message->context);
}

ssize_t send(fid_ep* ep, const void* bytes, std::size_t count, void* descriptor, fi_addr_t to,
             void* context) {
  return post(ep, {.bytes = bytes,
                   .total = count,
                   .descriptor = descriptor,
                   .to = to,
                   .data = {},
                   .context = context,
                   .flags = of(ep).default_flags()});
}

ssize_t send_message(fid_ep* ep, const fi_msg* message, std::uint64_t flags) {
  if (message->iov_count > 1) return -FI_EINVAL;
  Post wanted{.to = message->addr, .data = {}, .context = message->context, .flags = flags};
  if (message->iov_count == 1) {
    wanted.bytes = message->msg_iov->iov_base;
    wanted.total = message->msg_iov->iov_len;
    wanted.descriptor = message->desc ? *message->desc : nullptr;
  }
  if ((flags & FI_REMOTE_CQ_DATA) != 0) wanted.data = message->data;
  return post(ep, wanted);
}

ssize_t send_vector(fid_ep* ep, const iovec* vector, void** descriptors, std::size_t count,
                    fi_addr_t to, void* context) {
  const fi_msg message{vector, descriptors, count, to, context, 0};
  return send_message(ep, &message, of(ep).default_flags());
}

ssize_t inject(fid_ep* ep, const void* bytes, std::size_t count, fi_addr_t to) {
  return post(ep, {.bytes = bytes, .total = count, .to = to, .data = {}, .flags = FI_INJECT});
}

ssize_t send_data(fid_ep* ep, const void* bytes, std::size_t count, void* descriptor,
                  std::uint64_t data, fi_addr_t to, void* context) {
  return post(ep, {.bytes = bytes,
                   .total = count,
                   .descriptor = descriptor,
                   .to = to,
                   .data = data,
                   .context = context,
                   .flags = of(ep).default_flags()});
}

ssize_t inject_data(fid_ep* ep, const void* bytes, std::size_t count, std::uint64_t data,
                    fi_addr_t to) {
  return post(ep, {.bytes = bytes, .total = count, .to = to, .data = data, .flags = FI_INJECT});
}

// ---- remote writes

ssize_t write(fid_ep* ep, const void* bytes, std::size_t count, void* descriptor, fi_addr_t to,
              std::uint64_t address, std::uint64_t key, void* context) {
  return post(ep, {PacketKind::write,
                   bytes,
                   count,
                   descriptor,
                   to,
                   address,
                   key,
                   {},
                   context,
                   of(ep).default_flags()});
}

ssize_t write_message(fid_ep* ep, const fi_msg_rma* message, std::uint64_t flags) {
  if (message->iov_count > 1 || message->rma_iov_count != 1) return -FI_EINVAL;
  Post wanted{.kind = PacketKind::write,
              .to = message->addr,
              .address = message->rma_iov->addr,
              .key = message->rma_iov->key,
              .data = {},
              .context = message->context,
              .flags = flags};
  if (message->iov_count == 1) {
    wanted.bytes = message->msg_iov->iov_base;
    wanted.total = message->msg_iov->iov_len;
    wanted.descriptor = message->desc ? *message->desc : nullptr;
  }
  if (wanted.total != message->rma_iov->len) return -FI_EINVAL;
  if ((flags & FI_REMOTE_CQ_DATA) != 0) wanted.data = message->data;
  return post(ep, wanted);
}

ssize_t write_vector(fid_ep* ep, const iovec* vector, void** descriptors, std::size_t count,
                     fi_addr_t to, std::uint64_t address, std::uint64_t key, void* context) {
  const fi_rma_iov target{address, count == 1 ? vector->iov_len : 0, key};
  const fi_msg_rma message{vector, descriptors, count, to, &target, 1, context, 0};
  return write_message(ep, &message, of(ep).default_flags());
}

ssize_t inject_write(fid_ep* ep, const void* bytes, std::size_t count, fi_addr_t to,
                     std::uint64_t address, std::uint64_t key) {
  return post(ep,
              {PacketKind::write, bytes, count, nullptr, to, address, key, {}, nullptr, FI_INJECT});
}

ssize_t write_data(fid_ep* ep, const void* bytes, std::size_t count, void* descriptor,
                   std::uint64_t data, fi_addr_t to, std::uint64_t address, std::uint64_t key,
                   void* context) {
  return post(ep, {PacketKind::write, bytes, count, descriptor, to, address, key, data, context,
                   of(ep).default_flags()});
}

ssize_t inject_write_data(fid_ep* ep, const void* bytes, std::size_t count, std::uint64_t data,
                          fi_addr_t to, std::uint64_t address, std::uint64_t key) {
  return post(
      ep, {PacketKind::write, bytes, count, nullptr, to, address, key, data, nullptr, FI_INJECT});
}

// ---- the object

ssize_t cancel(fid* object, void* context) {
  const std::lock_guard lock(of(object).domain.mutex);
  return of(object).cancel(context);
}

int get_option(fid* object, int level, int name, void* value, std::size_t* bytes) {
  return level == FI_OPT_ENDPOINT ? of(object).option(name, value, bytes) : -FI_ENOPROTOOPT;
}

int set_option(fid* object, int level, int name, const void* value, std::size_t bytes) {
  return level == FI_OPT_ENDPOINT ? of(object).set_option(name, value, bytes) : -FI_ENOPROTOOPT;
}

int get_name(fid* object, void* buffer, std::size_t* bytes) {
  return of(object).name(buffer, bytes);
}

int bind_endpoint(fid* object, fid* other, std::uint64_t flags) {
  const std::lock_guard lock(of(object).domain.mutex);
  return of(object).bind(other, flags);
}

int control_endpoint(fid* object, int command, void*) {
  if (command != FI_ENABLE) return -FI_ENOSYS;
  const std::lock_guard lock(of(object).domain.mutex);
  return of(object).enable();
}

int close_endpoint(fid* object) {
  Endpoint& endpoint = of(object);
  endpoint.close();
  std::mutex& mutex = endpoint.domain.mutex;
  const std::lock_guard lock(mutex);
  --endpoint.domain.children;
  delete &endpoint;
  return FI_SUCCESS;
}

void set_calls(fid_ep& ep, void* context) {
  static fi_ops operations{.size = sizeof(fi_ops),
                           .close = close_endpoint,
                           .bind = bind_endpoint,
                           .control = control_endpoint,
                           .ops_open = no_ops_open,
                           .tostr = nullptr,
                           .ops_set = nullptr};
  static fi_ops_ep controls{.size = sizeof(fi_ops_ep),
                            .cancel = cancel,
                            .getopt = get_option,
                            .setopt = set_option,
                            .tx_ctx = not_offered,
                            .rx_ctx = not_offered,
                            .rx_size_left = not_offered,
                            .tx_size_left = not_offered};
  static fi_ops_cm names{.size = sizeof(fi_ops_cm),
                         .setname = not_offered,
                         .getname = get_name,
                         .getpeer = not_offered,
                         .connect = not_offered,
                         .listen = not_offered,
                         .accept = not_offered,
                         .reject = not_offered,
                         .shutdown = not_offered,
                         .join = not_offered};
  static fi_ops_msg messages{.size = sizeof(fi_ops_msg),
                             .recv = receive,
                             .recvv = receive_vector,
                             .recvmsg = receive_message,
                             .send = send,
                             .sendv = send_vector,
                             .sendmsg = send_message,
                             .inject = inject,
                             .senddata = send_data,
                             .injectdata = inject_data};
  static fi_ops_rma writes{.size = sizeof(fi_ops_rma),
                           .read = not_offered,
                           .readv = not_offered,
                           .readmsg = not_offered,
                           .write = write,
                           .writev = write_vector,
                           .writemsg = write_message,
                           .inject = inject_write,
                           .writedata = write_data,
                           .injectdata = inject_write_data};
  static fi_ops_tagged tagged{.size = sizeof(fi_ops_tagged),
                              .recv = not_offered,
                              .recvv = not_offered,
                              .recvmsg = not_offered,
                              .send = not_offered,
                              .sendv = not_offered,
                              .sendmsg = not_offered,
                              .inject = not_offered,
                              .senddata = not_offered,
                              .injectdata = not_offered};
  ep.fid = {FI_CLASS_EP, context, &operations};
  ep.ops = &controls;
  ep.cm = &names;
  ep.msg = &messages;
  ep.rma = &writes;
  ep.tagged = &tagged;
}

}  // namespace

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** made, void* context) {
  auto& in = *static_cast<Domain*>(domain);
  if (!info->ep_attr || info->ep_attr->type != FI_EP_RDM || is_direct(*info) != in.direct)
    return -FI_EINVAL;
  if (info->tx_attr->size > kTransmitQueue || info->rx_attr->size > kReceiveQueue)
    return -FI_EINVAL;
  try {
    auto* endpoint = new Endpoint(in, *info);
    set_calls(*endpoint, context);
    const std::lock_guard lock(in.mutex);
    ++in.children;
    *made = endpoint;
    return FI_SUCCESS;
  } catch (const std::system_error& error) {
    return -error.code().value();
  }
}

}  // namespace shoal::test::efa
