// Operations through host memory. The engine copies each slice in, the host's Communicator moves
// it, and the engine copies it out while it copies the next slice in.
#include "shoal/collectives/backend/device/device_engine.h"

namespace shoal::collectives::device {
namespace {

std::int64_t total(const std::vector<std::int64_t>& parts, const Slicing& slicing, std::int64_t s) {
  std::int64_t sum = 0;
  for (const std::int64_t part : parts) sum += slice_count(part, slicing, s);
  return sum;
}

}  // namespace

void DeviceEngine::copy_in(const Call& call, const Parts& parts, const Slicing& slicing,
                           std::int64_t s, Slot& slot) {
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  for (const Piece& piece : pieces_of(parts.send, slicing, s))
    backend_.copy(static_cast<std::byte*>(slot.send.data()) + piece.staged * element,
                  static_cast<const std::byte*>(call.send) + piece.device * element,
                  static_cast<std::size_t>(piece.count * element), in_.view());
  slot.copied_in.record(in_.view());
}

void DeviceEngine::copy_out(const Call& call, const Parts& parts, const Slicing& slicing,
                            std::int64_t s, Slot& slot) {
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  for (const Piece& piece : pieces_of(parts.recv, slicing, s))
    backend_.copy(static_cast<std::byte*>(call.recv) + piece.device * element,
                  static_cast<const std::byte*>(slot.recv.data()) + piece.staged * element,
                  static_cast<std::size_t>(piece.count * element), out_.view());
  slot.copied_out.record(out_.view());
}

void DeviceEngine::stage(DeviceOperation& operation, const Call& call) {
  const Parts parts = parts_of(call, rank_, size_);
  const Slicing slicing = slicing_of(call, size_, setup_.slice_bytes);
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  // recv may be in use until `ready` is reached. in_ and out_ must not wait for the event: other
  // operations could then not pass a blocked call of this rank.
  until(call, [&] { return operation.ready.query(); });

  // At least one byte, because the host's Communicator needs a pointer even for an empty part.
  const auto buffer = [&](const std::vector<std::int64_t>& part) {
    const std::int64_t bytes = std::max<std::int64_t>(total(part, slicing, 0) * element, 1);
    return Buffer(staging_, static_cast<std::size_t>(bytes), MemoryTag::communication);
  };
  slots_.clear();
  for (std::int64_t i = 0; i < std::min<std::int64_t>(slicing.number, 2); ++i)
    slots_.push_back({buffer(parts.send), buffer(parts.recv), Event(device()), Event(device())});
  const auto slot_of = [&](std::int64_t s) -> Slot& {
    return slots_[static_cast<std::size_t>(s % 2)];
  };

  copy_in(call, parts, slicing, 0, slot_of(0));
  for (std::int64_t s = 0; s < slicing.number; ++s) {
    Slot& slot = slot_of(s);
    until(call, [&] { return slot.copied_in.query(); });
    const WorkPtr work =
        backend_of(*inner_).call(sliced(call, slicing, s, slot.send.data(), slot.recv.data()));
    if (s + 1 < slicing.number) {
      Slot& next = slot_of(s + 1);
      // The next slot's send buffer is free, because slice s - 1 has been moved. The host writes
      // the next slot's recv buffer only after slice s is done.
      copy_in(call, parts, slicing, s + 1, next);
    }
    until_done(*work);
    copy_out(call, parts, slicing, s, slot);
    if (s > 0) until(call, [&] { return slot_of(s - 1).copied_out.query(); });
  }
  until(call, [&] { return slot_of(slicing.number - 1).copied_out.query(); });
  slots_.clear();
  std::int64_t bytes = 0;
  for (const std::int64_t count : parts.send) bytes += count * element;
  const std::lock_guard lock(mutex_);
  ++statistics_.bounced;
  statistics_.bounced_bytes += bytes;
}

bool DeviceEngine::has_messages() const {
  return !messages_.empty() || (direct_messages_ && !direct_messages_->idle());
}

// Messages are posted in call order and then progress independently.
bool DeviceEngine::progress_messages() {
  {
    const std::lock_guard lock(mutex_);
    for (; !arriving_.empty(); arriving_.pop_front())
      if (direct_messages_)
        direct_messages_->take(arriving_.front());
      else
        messages_.push_back({.operation = arriving_.front(), .copied = Event(device())});
  }
  if (!has_messages()) return false;
  const auto outer = step_of_;
  step_of({});
  bool moved = direct_messages_ && direct_messages_->progress(), may_post = true;
  for (auto message = messages_.begin(); message != messages_.end();) {
    if (!may_post && message->stage == Message::Stage::arrived) break;
    moved = progress(*message) || moved;
    may_post = may_post && message->work != nullptr;
    if (message->operation->over.load(std::memory_order_relaxed))
      message = messages_.erase(message);
    else
      ++message;
  }
  step_of(outer);
  return moved;
}

// As in stage(), in_ and out_ do not wait for streams.
bool DeviceEngine::progress(Message& message) {
  DeviceOperation& operation = *message.operation;
  const Call& call = operation.call();
  const bool sends = call.operation == Operation::send;
  const auto bytes =
      static_cast<std::size_t>(call.count) * static_cast<std::size_t>(size_of(call.dtype));
  switch (message.stage) {
    case Message::Stage::arrived:
      if (!message.place && uses_rdma(call)) {
        message.place = rdma_place(sends ? call.send : call.recv, static_cast<std::int64_t>(bytes),
                                   message.staged);
        message.on_device = message.place != nullptr;
      }
      if (!message.place) {
        message.staged =
            Buffer(staging_, std::max<std::size_t>(bytes, 1), MemoryTag::communication);
        message.place = message.staged.data();
      }
      // The call's own buffer may still be in use. in_ does not wait for it, so that other messages
      // can pass.
      if ((sends || message.on_device) && !operation.ready.query()) return false;
      if (sends && message.staged) backend_.copy(message.place, call.send, bytes, in_.view());
      message.copied.record(in_.view());
      message.stage = Message::Stage::copying_in;
      [[fallthrough]];
    case Message::Stage::copying_in:
      if (!message.copied.query()) return false;
      message.work = backend_of(*inner_).call(sliced(
          call, {1, std::max<std::int64_t>(call.count, 1)}, 0, message.place, message.place));
      message.stage = Message::Stage::posted;
      return true;
    case Message::Stage::posted:
      if (!message.work->test() || !operation.ready.query()) return false;
      if (message.on_device && !sends) access_->flush_cards_writes();
      if (!sends && message.staged) backend_.copy(call.recv, message.place, bytes, out_.view());
      message.copied.record(out_.view());
      message.stage = Message::Stage::copying_out;
      [[fallthrough]];
    case Message::Stage::copying_out:
      break;
  }
  if (!message.copied.query()) return false;
  end_message(operation, static_cast<bool>(message.staged));
  return true;
}

void DeviceEngine::end_message(DeviceOperation& operation, bool staged) {
  const Call& call = operation.call();
  const bool copied = !operation.copies.empty();
  operation.copies.clear();
  const std::lock_guard lock(mutex_);
  ++statistics_.operations;
  if (staged || copied) {
    ++statistics_.bounced;
    statistics_.bounced_bytes += call.send_bytes(rank_, size_);
  } else {
    ++statistics_.zero_copy;
  }
  kinds_.insert(operation.kind);
  end(operation);
}

}  // namespace shoal::collectives::device
