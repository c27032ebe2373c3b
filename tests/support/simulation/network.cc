#include "support/simulation/network.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <poll.h>

namespace shoal::simulation {
namespace {

constexpr std::size_t kWindow = std::size_t{256} << 10;  // bytes on the way in one direction
constexpr std::size_t kMostQueued = std::size_t{4} << 20, kMostGuests = 4096;
constexpr std::uint32_t kFirstAddress = 10U << 24U | 1U, kLoopbackNet = 127;
constexpr Time kInside = 10 * kMicrosecond, kBetween = 25 * kMicrosecond;
constexpr double kTail = 0.01;  // share of the packets that are late
constexpr Time kLate = 2 * kMillisecond, kRetransmits = 200 * kMillisecond;

thread_local Network* current = nullptr;

bool is_loopback(std::uint32_t address) { return address >> 24U == kLoopbackNet; }

}  // namespace

Network& network() { return *current; }

Host& Descriptor::host() const { return network_.host(owner_->host); }

// ---- eventfd

short Counter::ready() const { return static_cast<short>(POLLOUT | (count_ > 0 ? POLLIN : 0)); }

void Counter::add(std::uint64_t number) {
  count_ += number;
  network_.scheduler().activity(*owner_);
}

// ---- TCP

short Stream::ready() const {
  int events = 0;
  if (state_ == State::listening) return static_cast<short>(guests_.empty() ? 0 : POLLIN);
  if (read_ < in_.size() || ended_) events |= POLLIN;
  if (error_ != 0) events |= POLLIN | POLLOUT | POLLERR;
  if (state_ == State::closed) events |= POLLIN | POLLOUT | POLLHUP;
  if (state_ == State::open && on_way_ < kWindow) events |= POLLOUT;
  return static_cast<short>(events);
}

int Stream::listen() {
  state_ = State::listening;
  return 0;
}

int Stream::connect(Place to) {
  there = to;
  peer_host_ = network_.host_at(to.address, owner_->host);
  if (peer_host_ < 0) return -ENETUNREACH;
  if (here.port == 0) {
    here = {host().address, 0};
    if (!network_.bind(shared_from_this(), here)) return -EADDRINUSE;
  }
  state_ = State::connecting;
  try_to_connect(0);
  return -EINPROGRESS;
}

// The kernel repeats its SYN after 1, 2, 4 ... seconds.
void Stream::try_to_connect(int attempt) {
  Scheduler& time = network_.scheduler();
  const int from = owner_->host;
  time.after(network_.latency(from, peer_host_), [self = weak_from_this(), attempt, from] {
    const auto one = self.lock();
    if (!one || one->state_ != State::connecting) return;
    Network& net = one->network_;
    if (!net.reaches(from, one->peer_host_))
      return net.scheduler().after(kSecond << std::min(attempt, 6), [self, attempt] {
        const auto still = self.lock();
        if (still && still->state_ == State::connecting) still->try_to_connect(attempt + 1);
      });
    const auto found = net.streams_.find({one->peer_host_, one->there.port});
    const auto listener = found == net.streams_.end() ? nullptr : found->second.lock();
    const bool listens = listener && listener->state_ == State::listening &&
                         (listener->any_address || listener->here.address == one->there.address) &&
                         listener->guests_.size() < kMostGuests;
    std::shared_ptr<Stream> guest;
    if (listens) {
      guest = std::make_shared<Stream>(net, listener->owner());
      guest->state_ = State::open;
      guest->here = {listener->host().address, one->there.port};
      guest->there = one->here;
      guest->peer_ = self;
      guest->peer_host_ = from;
      guest->acknowledged_ = guest->data_ = net.scheduler().now();
      listener->guests_.push_back(guest);
      net.scheduler().activity(listener->owner());
    }
    net.scheduler().after(
        net.latency(one->peer_host_, from), [self, peer = std::weak_ptr(guest), listens] {
          const auto client = self.lock();
          if (!client || client->state_ != State::connecting) return;
          client->state_ = listens ? State::open : State::closed;
          client->error_ = listens ? 0 : ECONNREFUSED;
          client->peer_ = peer;
          client->acknowledged_ = client->data_ = client->network_.scheduler().now();
          client->network_.scheduler().activity(client->owner());
        });
  });
}

std::shared_ptr<Stream> Stream::accept(Process& by) {
  if (guests_.empty()) return nullptr;
  auto guest = std::move(guests_.front());
  guests_.pop_front();
  guest->owner_ = &by;
  return guest;
}

void Stream::transmit(Segment segment) {
  const auto to = peer_.lock();
  segment.from = weak_from_this();
  Time arrival = network_.scheduler().now() + network_.latency(owner_->host, peer_host_);
  if (to) arrival = to->last_arrival_ = std::max(to->last_arrival_ + 1, arrival);
  network_.scheduler().at(
      arrival, [&net = network_, to = std::weak_ptr(to), segment = std::move(segment)]() mutable {
        if (const auto still = to.lock()) return still->arrive(std::move(segment));
        // No socket is there any more: that kernel answers data by a reset.
        const auto from = segment.from.lock();
        if (!from || segment.kind != Segment::Kind::data) return;
        const int sent_by = from->owner_->host, sent_to = from->peer_host_;
        if (!net.reaches(sent_by, sent_to)) return;
        net.scheduler().after(net.latency(sent_to, sent_by),
                              [&net, from = segment.from, sent_by, sent_to] {
                                const auto sender = from.lock();
                                if (sender && net.reaches(sent_to, sent_by))
                                  sender->take({Segment::Kind::reset, {}, {}});
                              });
      });
}

// Called at the host of this end. `peer_host_` sent it.
void Stream::arrive(Segment segment) {
  if (!host().powered) return;
  if (held_.empty() && network_.reaches(peer_host_, owner_->host)) return take(std::move(segment));
  held_.push_back(std::move(segment));
  if (!retransmits_) network_.waiting_for_heal_.push_back(weak_from_this());
  retransmits_ = true;
}

void Stream::retransmit() {
  retransmits_ = false;
  std::deque<Segment> held = std::move(held_);
  held_.clear();
  for (Segment& segment : held) arrive(std::move(segment));
}

void Stream::take(Segment segment) {
  Scheduler& time = network_.scheduler();
  if (state_ == State::closed) {
    // No process reads here any more: the kernel answers data by a reset.
    if (const auto from = segment.from.lock(); from && segment.kind == Segment::Kind::data)
      transmit({Segment::Kind::reset, {}, {}});
    return;
  }
  switch (segment.kind) {
    case Segment::Kind::data:
      in_ += segment.bytes;
      data_ = time.now();
      acknowledge(segment.from);
      break;
    case Segment::Kind::end:
      ended_ = true;
      break;
    case Segment::Kind::reset:
      error_ = ECONNRESET;
      state_ = State::closed;
      break;
  }
  time.activity(*owner_);
}

void Stream::acknowledge(const std::weak_ptr<Stream>& from) {
  const int here_is = owner_->host, there_is = peer_host_;
  network_.scheduler().after(network_.latency(here_is, there_is),
                             [&net = network_, from, here_is, there_is] {
                               const auto sender = from.lock();
                               if (sender && net.reaches(here_is, there_is))
                                 sender->acknowledged_ = net.scheduler().now();
                             });
}

long Stream::send(std::string_view bytes) {
  if (error_ != 0) return -take_error();
  if (state_ == State::connecting) return -EAGAIN;
  if (state_ != State::open) return -EPIPE;
  const std::size_t count = std::min(bytes.size(), kWindow - std::min(on_way_, kWindow));
  if (count == 0 && !bytes.empty()) return -EAGAIN;
  on_way_ += count;
  transmit({Segment::Kind::data, std::string(bytes.substr(0, count)), {}});
  return static_cast<long>(count);
}

void Stream::made_room() {
  const auto sender = peer_.lock();
  if (!sender) return;
  const bool was_full = sender->on_way_ >= kWindow;
  sender->on_way_ -= std::min(sender->on_way_, read_);
  if (was_full) network_.scheduler().activity(*sender->owner_);
}

long Stream::receive(char* to, std::size_t most, bool peek) {
  const std::size_t count = std::min(most, in_.size() - read_);
  if (count > 0) {
    std::memcpy(to, in_.data() + read_, count);
    if (peek) return static_cast<long>(count);
    read_ += count;
    if (read_ == in_.size()) {
      made_room();
      in_.clear();
      read_ = 0;
    }
    return static_cast<long>(count);
  }
  if (error_ != 0) return -take_error();
  if (ended_) return 0;
  if (state_ == State::closed) return -ECONNRESET;
  return state_ == State::open ? -EAGAIN : -ENOTCONN;
}

void Stream::close() {
  for (const auto& guest : guests_) guest->close();
  guests_.clear();
  if (state_ == State::open && host().powered)
    transmit({read_ < in_.size() ? Segment::Kind::reset : Segment::Kind::end, {}, {}});
  state_ = State::closed;
}

double Stream::seconds_since_acknowledged() const {
  return static_cast<double>(network_.scheduler().now() - acknowledged_) * 1e-9;
}
double Stream::seconds_since_data() const {
  return static_cast<double>(network_.scheduler().now() - data_) * 1e-9;
}

// ---- UDP

short Datagrams::ready() const {
  return static_cast<short>(POLLOUT | (arrived.empty() ? 0 : POLLIN));
}

void Datagrams::close() { arrived.clear(); }

void Datagrams::send(Place to, std::string_view bytes) {
  const int from = owner_->host, target = network_.host_at(to.address, from);
  if (target < 0) return;
  Scheduler& time = network_.scheduler();
  const Weather& weather = network_.weather;
  if (from != target && time.chance() < weather.lost) return;
  const int copies = from != target && time.chance() < weather.repeated ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    const Time delay = network_.latency(from, target) +
                       static_cast<Time>(time.random(static_cast<std::uint64_t>(weather.spread)));
    time.after(delay,
               [&net = network_, from, target, to, source = here, text = std::string(bytes)] {
                 if (!net.reaches(from, target)) return;
                 const auto found = net.datagrams_.find({target, to.port});
                 const auto socket = found == net.datagrams_.end() ? nullptr : found->second.lock();
                 if (socket) socket->take(source, text);
               });
  }
}

void Datagrams::take(const Place& from, const std::string& bytes) {
  std::size_t queued = 0;
  for (const auto& [place, text] : arrived) queued += text.size();
  if (queued + bytes.size() > kMostQueued) return;
  arrived.emplace_back(from, bytes);
  network_.scheduler().activity(*owner_);
}

// ---- hosts

Network::Network(Scheduler& scheduler) : scheduler_(scheduler) { current = this; }
Network::~Network() { current = nullptr; }

int Network::add_host(std::string name) {
  Host host;
  host.name = std::move(name);
  host.address = kFirstAddress + static_cast<std::uint32_t>(hosts_.size());
  hosts_.push_back(std::move(host));
  return static_cast<int>(hosts_.size()) - 1;
}

int Network::add(std::shared_ptr<Descriptor> descriptor) {
  descriptors_[next_] = std::move(descriptor);
  return next_++;
}

std::shared_ptr<Descriptor> Network::find(int fd) const {
  const auto found = descriptors_.find(fd);
  return found == descriptors_.end() ? nullptr : found->second;
}

bool Network::close(int fd) {
  const auto found = descriptors_.find(fd);
  if (found == descriptors_.end()) return false;
  const auto closed = std::move(found->second);
  descriptors_.erase(found);
  closed->close();
  return true;
}

void Network::close_all(Process& process) {
  std::vector<int> own;
  for (const auto& [fd, descriptor] : descriptors_)
    if (&descriptor->owner() == &process) own.push_back(fd);
  for (const int fd : own) close(fd);
}

void Network::cut(int host) { hosts_[static_cast<std::size_t>(host)].cut = true; }

void Network::heal(int host) {
  hosts_[static_cast<std::size_t>(host)].cut = false;
  for (const auto& one : std::exchange(waiting_for_heal_, {}))
    scheduler_.after(static_cast<Time>(scheduler_.random(static_cast<std::uint64_t>(kRetransmits))),
                     [one] {
                       if (const auto stream = one.lock()) stream->retransmit();
                     });
}

bool Network::reaches(int from, int to) const {
  const Host& a = hosts_[static_cast<std::size_t>(from)];
  const Host& b = hosts_[static_cast<std::size_t>(to)];
  return a.powered && b.powered && (from == to || (!a.cut && !b.cut));
}

Time Network::latency(int from, int to) {
  if (from == to) return kInside + static_cast<Time>(scheduler_.random(kInside));
  Time time =
      kBetween + static_cast<Time>(scheduler_.random(kBetween)) + host(from).slow + host(to).slow;
  if (scheduler_.chance() < kTail) time += static_cast<Time>(scheduler_.random(kLate));
  return time;
}

int Network::host_at(std::uint32_t address, int seen_from) const {
  if (is_loopback(address)) return seen_from;
  const std::uint32_t number = address - kFirstAddress;
  return number < hosts_.size() ? static_cast<int>(number) : -1;
}

bool Network::bind(const std::shared_ptr<Descriptor>& descriptor, Place& at) {
  const int number = descriptor->owner().host;
  const auto stream = std::dynamic_pointer_cast<Stream>(descriptor);
  const auto datagrams = std::dynamic_pointer_cast<Datagrams>(descriptor);
  if (at.port == 0) at.port = host(number).next_port++;
  const Bound bound{number, at.port};
  if (stream) {
    if (!streams_[bound].expired()) return false;
    streams_[bound] = stream;
    stream->here = at;
    stream->any_address = at.address == 0;
  } else if (datagrams) {
    if (!datagrams_[bound].expired()) return false;
    datagrams_[bound] = datagrams;
    datagrams->here = at;
  }
  return true;
}

}  // namespace shoal::simulation
