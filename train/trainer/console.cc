#include "shoal/train/trainer/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal {
namespace {

constexpr double kDrawEvery = 0.1, kSayEvery = 30;  // seconds

// Records have full precision; this rounds them for display as Hugging Face does.
nlohmann::ordered_json for_people(const nlohmann::ordered_json& record) {
  OrderedFields shown;
  for (const auto& [name, value] : record.items()) {
    if (name == "step") continue;
    if (!value.is_number_float()) {
      shown[name] = value;
      continue;
    }
    const double number = value.get<double>();
    if (name == "learning_rate")
      shown[name] = parse_number<double>(fmt::format("{:.6g}", number)).value_or(number);
    else if (name == "epoch")
      shown[name] = round_to(number, 2);
    else if (name.ends_with("_per_second"))
      shown[name] = round_to(number, 3);
    else
      shown[name] = round_to(number, 4);
  }
  return std::move(shown).json();
}

}  // namespace

int terminal_width(std::FILE* stream) {
  return stream == nullptr ? 0 : terminal_width(::fileno(stream));
}

int terminal_width(int descriptor) {
  if (::isatty(descriptor) == 0) return 0;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

ConsoleCallback::ConsoleCallback(const Options& options) : options_(options) {
  last_said_ = Clock::now();
}

ConsoleCallback::~ConsoleCallback() { clear(); }

int ConsoleCallback::columns() const {
  return options_.columns > 0 ? options_.columns : terminal_width(options_.bar);
}

void ConsoleCallback::clear() {
  if (drawn_ == 0) return;
  std::fputs("\r\033[K", options_.bar);
  std::fflush(options_.bar);
  drawn_ = 0;
}

void ConsoleCallback::draw(const std::string& text) {
  std::fprintf(options_.bar, "\r\033[K%s", terminal::visible(text).c_str());
  std::fflush(options_.bar);
  drawn_ = text.size();
}

void ConsoleCallback::line(const std::string& text) {
  clear();
  if (options_.out == nullptr) return;
  terminal::print(options_.out, "{}\n", text);
  std::fflush(options_.out);
}

void ConsoleCallback::on_step_end(const StepReport& report, TrainerControl&) {
  const auto now = Clock::now();
  if (report.known) loss_ = fmt::format("loss {:.4g}, ", report.loss);
  const std::string detail =
      fmt::format("{}lr {:.3g}, {} tok/s", loss_, report.learning_rate,
                  format_count(static_cast<std::int64_t>(report.tokens_per_second)));
  if (options_.bar != nullptr) {
    const bool last = report.step == report.total_steps;
    if (!last && std::chrono::duration<double>(now - last_drawn_).count() < kDrawEvery) return;
    last_drawn_ = now;
    draw(progress_line(report.step, report.total_steps, report.elapsed, "step", detail, columns()));
  } else if (options_.plain_progress &&
             std::chrono::duration<double>(now - last_said_).count() > kSayEvery) {
    last_said_ = now;
    line(fmt::format("step {}/{} [{}], {}", report.step, report.total_steps,
                     format_seconds(report.elapsed), detail));
  }
}

void ConsoleCallback::on_log(const nlohmann::ordered_json& record) {
  line(python_dict(for_people(record)));
}

void ConsoleCallback::on_evaluate_progress(std::int64_t batch, std::int64_t batches) {
  if (options_.bar == nullptr) return;
  const auto now = Clock::now();
  if (batch <= 1) evaluation_began_ = now;
  if (std::chrono::duration<double>(now - last_drawn_).count() < kDrawEvery) return;
  last_drawn_ = now;
  draw(progress_line(batch, batches, std::chrono::duration<double>(now - evaluation_began_).count(),
                     "batch", "evaluating", columns()));
}

void ConsoleCallback::on_message(const std::string& text) { line(text); }
void ConsoleCallback::on_train_end(const TrainerState&) { clear(); }

ProgressBar::ProgressBar(std::FILE* stream, std::string unit)
    : stream_(terminal_width(stream) > 0 ? stream : nullptr),
      unit_(std::move(unit)),
      began_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stream_);
  std::fflush(stream_);
}

void ProgressBar::update(std::int64_t done, std::int64_t total, const std::string& detail) {
  if (stream_ == nullptr) return;
  const auto now = Clock::now();
  if (done < total && std::chrono::duration<double>(now - last_).count() < kDrawEvery) return;
  last_ = now;
  drawn_ = true;
  std::fprintf(stream_, "\r\033[K%s",
               terminal::visible(progress_line(done, total, seconds_since(began_), unit_, detail,
                                               terminal_width(stream_)))
                   .c_str());
  std::fflush(stream_);
}

}  // namespace shoal
