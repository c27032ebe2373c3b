"""tools/check_rules finds each kind of fault in every spelling, and accepts correct code."""
import importlib.machinery
import importlib.util
import pathlib
import unittest

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_rules"
LOADER = importlib.machinery.SourceFileLoader("check_rules", str(PROGRAM))
check_rules = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(check_rules)

DROPPED = """
std::error_code ignored; std::filesystem::remove(path, ignored);
if (fs::exists(p, ec)) return;
if (std::filesystem::exists(p)) return;
for (const auto& entry : fs::directory_iterator(p, ec)) use(entry);
namespace files = std::filesystem;
using namespace std::filesystem;
using std::filesystem::remove_all;
auto none = std::error_code{};
void f() { ::unlink(path.c_str()); }
void f() { unlink(path.c_str()); }
void f() { std::remove(path.c_str()); }
(void)::unlink(path.c_str());
(void)!::ftruncate(fd, 0);
static_cast<void>(::rename(a, b));
std::ignore = ::fsync(fd);
[[maybe_unused]] const int done = ::rmdir(path);
if (old) ::unlink(path);
if (old) x(); else ::unlink(path);
case 1: ::unlink(path);
void f() { x(); ::fdatasync(fd); }
void f() { x(); ::symlink(a, b); }
void f() { x(); unlinkat(fd, name, 0); }
const bool there = ::access(path.c_str(), F_OK) == 0;
if (stat(path.c_str(), &status) != 0) return false;
return ::lstat(path.c_str(), &status) == 0;
DIR* const all = ::opendir(path.c_str());
FILE* const file = fopen(path.c_str(), "r");
std::ofstream(path) << text;
"""
NULLABLE = """
const int layers = config.value("n_layer", 12);
const int layers = config->value("n_layer", 12);
const int layers = config.value<int>("n_layer", 12);
const int layers = config.template value<int>("n_layer", 12);
const int layers = config .value ("n_layer",\t12);
const auto name = config.value(key(of(the(layer))), std::string());
const auto name = config.value(nlohmann::json::json_pointer("/a/b"), "");
const auto list = config.value("layers", std::vector<int>{1, 2});
"""
DEADLINES = """
const auto end = Deadline::in_seconds(30);
const auto end = Deadline::in_seconds(std::min(left, 30.0));
const auto end = Deadline::in_seconds(kPatient);
wait_for(lock, std::chrono::seconds(30));
wait_for(lock, std::chrono::seconds{30});
using std::chrono::seconds; wait_for(lock, seconds(30));
constexpr std::chrono::seconds kPatient{30};
constexpr auto kPatient = std::chrono::minutes(2);
inline constexpr std::chrono::hours kPatient{24};
wait_for(lock, std::chrono::milliseconds(30000));
wait_for(lock, std::chrono::milliseconds(30'000));
constexpr std::chrono::milliseconds kPatient{5000};
wait_for(lock, std::chrono::duration<double>(30));
using namespace std::chrono_literals;
constexpr int kTimeoutSeconds = 30;
static constexpr double kTimeout = 0.5;
inline constexpr std::int64_t kConnectTimeoutMs{30000};
constexpr long kAnswerMilliseconds = 2000;
const double kStoreDeadline{30};
#define STORE_TIMEOUT 30
double timeout_seconds = 600;
int connect_seconds = 10;
void wait(double deadline_seconds = 600);
::sleep(30);
sleep(30);
alarm(30);
if (::poll(&watched, 1, 30000) <= 0) return;
const timeval patient{30, 0};
"""
RIGHT = """
namespace fs = std::filesystem;
const fs::path base = fs::absolute(path).parent_path();
if (::unlink(path.c_str()) != 0) fail("remove");
const int failed = ::rename(a, b);
if (const int done = ::fsync(fd); done != 0) fail("sync");
return ::mkdir(path, 0700);
struct stat status{};
remove(key);
store.remove(key);
bool remove(std::string_view key) override;
void open() override;
const FileKind kind = file_kind(path);
const int layers = optional.value();
const int layers = optional.value_or(12);
const int layers = field_or(config, "n_layer", 12, file);
const Node node = graph.value();
// config.value("n_layer", 12) throws where it is null; std::chrono::seconds(30) is too long
const auto end = Deadline::in_seconds(deadlines::kCause);
const auto end = Deadline::in_seconds(options.deadline_seconds);
std::this_thread::sleep_for(std::chrono::milliseconds(50));
constexpr int kPollMilliseconds = 50;
double wait_seconds = 0;
double deadline_seconds = 0;
endpoint.sleep(1000);
std::chrono::duration_cast<std::chrono::seconds>(time);
const double seconds = left.seconds();
"""


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def rules_that_find(line: str, name: str = "train/planted.cc") -> list[str]:
    return [problem.split(": ")[1] for problem in check_rules.problems_in(name, f"\n{line}\n")]


class CheckRules(unittest.TestCase):
    def expect(self, planted: str, rules: set[str]) -> None:
        for line in lines_of(planted):
            with self.subTest(line):
                self.assertTrue(rules & set(rules_that_find(line)), "not found")

    def test_finds_dropped_errors_of_the_file_system(self) -> None:
        self.expect(DROPPED, {"an error that can be dropped", "a call of std::filesystem", "another name of std::filesystem", "a result thrown away",
                              "a raw look at the file system", "a stream that drops its errors"})

    def test_finds_fields_that_may_be_null(self) -> None:
        self.expect(NULLABLE, {"a nullable JSON field"})

    def test_finds_deadlines_outside_of_their_header(self) -> None:
        self.expect(DEADLINES, {"deadline"})
        for line in lines_of(DEADLINES):
            self.assertEqual(rules_that_find(line, "runtime/base/deadlines.h"), [])

    def test_finds_files_that_no_readme_lists(self) -> None:
        readmes = {"nn": "| `autograd/` |", "nn/optim": "| `update_rule.h`, `steps/` |"}
        found = check_rules.unlisted_files(
            readmes, ["nn/optim/update_rule.cc", "nn/optim/rule.h", "nn/optim/steps/a.cc", "nn/autograd/tape.h", "apps/main.cc"])
        self.assertEqual(list(found), ["nn/optim/rule.h:1: a file that no README lists: add it to nn/optim/README.md"])

    def test_finds_no_more(self) -> None:
        for line in lines_of(RIGHT):
            with self.subTest(line):
                self.assertEqual(rules_that_find(line), [])

    def test_names_the_line_and_what_to_write(self) -> None:
        text = "// one\n/* two\n three */\nint a = config.value(\"a\", 1);\n"
        (problem,) = check_rules.problems_in("nn/planted.h", text)
        self.assertTrue(problem.startswith("nn/planted.h:4: a nullable JSON field: "), problem)
        self.assertIn("field_or", problem)


if __name__ == "__main__":
    unittest.main()
