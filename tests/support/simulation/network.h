// The simulated hosts, the network between them, and the sockets of simulated processes.
//
// TCP keeps the order of a stream, as kernels do: a cut only delays its bytes until it heals, and
// the kernel of a stopped process still acknowledges them. UDP loses, repeats and reorders. Nothing
// of this knows what the bytes mean.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/simulation/scheduler.h"

namespace shoal::simulation {

// An IPv4 address and a port, both in host order.
struct Place {
  std::uint32_t address = 0;
  std::uint16_t port = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

struct Host {
  std::string name;
  std::uint32_t address = 0;
  bool cut = false;     // from all other hosts
  bool powered = true;  // without power nothing ever comes from it again
  Time slow = 0;        // added to each packet from and to it
  std::uint16_t next_port = 30000;
};

struct Weather {  // of UDP packets between hosts
  double lost = 0, repeated = 0;
  Time spread = 0;  // each packet is delayed by up to this much, so that later ones overtake it
};

class Network;

// What a file descriptor stands for.
class Descriptor {
 public:
  Descriptor(Network& network, Process& owner) : network_(network), owner_(&owner) {}
  virtual ~Descriptor() = default;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  virtual short ready() const = 0;  // of poll(2)'s events
  virtual void close() {}
  Process& owner() const { return *owner_; }
  Host& host() const;

 protected:
  Network& network_;
  Process* owner_;
};

class Counter final : public Descriptor {  // eventfd
 public:
  using Descriptor::Descriptor;
  short ready() const override;
  void add(std::uint64_t number);
  std::uint64_t take() { return std::exchange(count_, 0); }

 private:
  std::uint64_t count_ = 0;
};

class Stream final : public Descriptor, public std::enable_shared_from_this<Stream> {
 public:
  using Descriptor::Descriptor;
  short ready() const override;
  void close() override;

  // As the system calls: negative results are errors.
  int connect(Place to);
  int listen();
  std::shared_ptr<Stream> accept(Process& by);
  long send(std::string_view bytes);
  long receive(char* to, std::size_t most, bool peek = false);
  int take_error() { return std::exchange(error_, 0); }

  Place here, there;
  bool any_address = false;
  double seconds_since_acknowledged() const;
  double seconds_since_data() const;

 private:
  enum class State : std::uint8_t { fresh, listening, connecting, open, closed };
  struct Segment {
    enum class Kind : std::uint8_t { data, end, reset } kind = Kind::data;
    std::string bytes;
    std::weak_ptr<Stream> from;
  };
  void try_to_connect(int attempt);
  void transmit(Segment segment);
  void arrive(Segment segment);
  void take(Segment segment);
  void retransmit();
  void acknowledge(const std::weak_ptr<Stream>& from);
  void made_room();

  State state_ = State::fresh;
  int error_ = 0;
  bool ended_ = false;  // the peer sends no more
  std::weak_ptr<Stream> peer_;
  int peer_host_ = -1;
  std::string in_;
  std::size_t read_ = 0, on_way_ = 0;  // bytes of in_ that were read; that the peer has not read
  Time last_arrival_ = 0;              // of the segments towards this end: they keep their order
  Time acknowledged_ = 0, data_ = 0;   // when an acknowledgement and data came last
  std::deque<Segment> held_;           // towards this end, by a cut
  bool retransmits_ = false;
  std::deque<std::shared_ptr<Stream>> guests_;  // connections to accept

  friend class Network;
};

class Datagrams final : public Descriptor, public std::enable_shared_from_this<Datagrams> {
 public:
  using Descriptor::Descriptor;
  short ready() const override;
  void close() override;
  void send(Place to, std::string_view bytes);
  std::deque<std::pair<Place, std::string>> arrived;
  Place here;

 private:
  void take(const Place& from, const std::string& bytes);
  std::size_t bytes_ = 0;
  friend class Network;
};

class Network {
 public:
  static constexpr int kFirstDescriptor = 1 << 24;  // above those of the real process

  explicit Network(Scheduler& scheduler);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  int add_host(std::string name);  // its address is 10.0.0.1 plus its number
  Host& host(int number) { return hosts_[static_cast<std::size_t>(number)]; }
  std::size_t hosts() const { return hosts_.size(); }
  Weather weather;

  int add(std::shared_ptr<Descriptor> descriptor);
  std::shared_ptr<Descriptor> find(int fd) const;  // null if there is none
  template <typename Kind>
  std::shared_ptr<Kind> find_as(int fd) const {
    return std::dynamic_pointer_cast<Kind>(find(fd));
  }
  bool close(int fd);
  void close_all(Process& process);  // what the kernel does when a process ends

  // Faults. Call from events.
  void cut(int host);
  void heal(int host);
  void power_off(int host) { hosts_[static_cast<std::size_t>(host)].powered = false; }

  bool reaches(int from, int to) const;
  Time latency(int from, int to);
  int host_at(std::uint32_t address, int seen_from) const;  // -1: none
  // 0 as `port` chooses one. False if it is in use.
  bool bind(const std::shared_ptr<Descriptor>& descriptor, Place& at);
  Scheduler& scheduler() const { return scheduler_; }

 private:
  friend class Stream;
  friend class Datagrams;
  using Bound = std::pair<int, std::uint16_t>;  // host, port
  Scheduler& scheduler_;
  std::vector<Host> hosts_;
  std::map<int, std::shared_ptr<Descriptor>> descriptors_;
  std::map<Bound, std::weak_ptr<Stream>> streams_;
  std::map<Bound, std::weak_ptr<Datagrams>> datagrams_;
  std::vector<std::weak_ptr<Stream>> waiting_for_heal_;
  int next_ = kFirstDescriptor;
};

// The network of the simulation on this thread.
Network& network();

}  // namespace shoal::simulation
