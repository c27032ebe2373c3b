// Command lines of nccl-tests' users, run as links to shoal-collective-perf, whose output is read
// as scripts read nccl-tests'.
#include <algorithm>
#include <filesystem>
#include <regex>
#include <sstream>

#include "apps/program.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/json.h"

namespace shoal {
namespace {

using test::ProgramResult;
using ::testing::HasSubstr;

// Sizes and iterations are too many for a test: larger ones become these.
constexpr const char* kMostBytes = "64K";
constexpr const char* kMostIterations = "20";

struct Line {
  int processes;      // that mpirun starts
  const char* words;  // as published, but for sizes and iterations
  int ranks, rows;
  const char* note = "";  // on standard error
};

// From nccl-tests' README and help, and from pages of AWS, Azure, Google, Oracle and NVIDIA.
constexpr const char* kHost = "use host memory";
const std::vector<Line> kLines{
    {1, "all_reduce_perf -b 8 -e 128M -f 2 -g 8", 8, 14, kHost},
    {2, "all_reduce_perf -b 8 -e 8G -f 2 -g 1", 2, 14, kHost},
    {2, "all_reduce_perf_mpi -b 8 -e 2G -f 2 -g 1 -n 100 -w 20 -c 1", 2, 14, kHost},
    {2, "all_reduce_perf -b1K -f2 -g1 -e 4G", 2, 7, kHost},
    {2, "all_reduce_perf -b 512KB -e 4G -f 2 -t 1 -g 1 -w 50 -n 100 -c 0", 2, 1, kHost},
    {2, "all_reduce_perf -b1G -e10G -i9663676416 -n 100 -g 1", 2, 1, kHost},
    {1, "all_reduce_perf -b 8 -e 1K -f 2 -t 2 -d half -o all", 2, 48},
    {1, "all_reduce_perf -b 1K -e 1K -t 2 -d all -o sum", 2, 8, "leaves out uint32, uint64"},
    {1, "all_reduce_perf -b 1K -e 1K -t 2 -d all -o all -n 2", 2, 40, "avg and mulsum of integers"},
    {1, "all_reduce_perf -b 8 -e 128M -f 2 -g 2 -G 10", 2, 14, "-G 10 is ignored"},
    {2, "all_gather_perf -b 1M -e 8G -f 2 -g 1 -w 5 --iters 100 -c 0", 2, 1, kHost},
    {1, "all_gather_perf -b 16K -e 64K -i 16K -t 3 -d bfloat16", 3, 4},
    {2, "reduce_scatter_perf -b 32K -e 8G -f 2 -g 4", 8, 2, kHost},
    {1, "alltoall_perf -b 1K -e 1G -d bfloat16 -f 2 -g 2 -n 10", 2, 7, kHost},
    {1, "sendrecv_perf -b 96 -e 4096M -f 2 -g 3", 3, 10, kHost},
    {1, "broadcast_perf --minbytes 8 --maxbytes 256M --stepfactor 4 --nthreads 2 --root all", 2,
     14},
    {2, "reduce_perf -b 8 -e 1K -f 2 -d int32 -o max -r 1 -a 3 -z 1", 2, 8},
    {1, "gather_perf -b 4K -e 64K -f 4 -t 2 -m 4 -R 0 -p 1 -T 60", 2, 3, "bounce slots"},
    {1, "scatter_perf -b 4K -e 64K -f 4 -t 2 -N 2 -S 1 -u 1 -R 1 -z 3", 2, 6, "bounce slots"},
    {1, "all_reduce_perf -b 8 -e 64K -f 8 -t 2 -I 1 -K 2 -C 1 -z 0 -m 5 -n 10", 2, 5},
};

std::vector<std::string> smaller(const std::string& line) {
  const auto bytes = [](const std::string& text) {
    const double number = std::stod(text);
    const auto unit = text.find_first_of("KMG");
    return unit == std::string::npos ? number
                                     : number * (text[unit] == 'K'   ? 1024.0
                                                 : text[unit] == 'M' ? 1048576.0
                                                                     : 1073741824.0);
  };
  static const std::regex option(
      "(-b|-e|-i|-n|--minbytes|--maxbytes|--iters)( ?)([0-9]+[KMG]?B?)(?= |$)");
  std::string text;
  auto rest = line.cbegin();
  for (std::sregex_iterator at(line.begin(), line.end(), option), end; at != end; ++at) {
    text.append(rest, (*at)[0].first);
    const bool counts = (*at)[1] == "-n" || (*at)[1] == "--iters";
    const bool fits = bytes((*at)[3]) <= bytes(counts ? kMostIterations : kMostBytes);
    text += (*at)[1].str() + (*at)[2].str() +
            (fits     ? (*at)[3].str()
             : counts ? kMostIterations
                      : kMostBytes);
    rest = (*at)[0].second;
  }
  text.append(rest, line.cend());
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  if (text.find(" -n ") == std::string::npos && text.find("--iters") == std::string::npos)
    words.insert(words.end(), {"-n", kMostIterations});
  if (text.find(" -w ") == std::string::npos) words.insert(words.end(), {"-w", "1"});
  return words;
}

// The program under nccl-tests' name.
ProgramResult run(int processes, std::vector<std::string> words) {
  const testing::TemporaryDirectory directory;
  const std::string name = directory.path() + "/" + words.front();
  std::filesystem::create_symlink(SHOAL_PERF_PROGRAM, name);
  words.front() = name;
  if (processes == 1) return test::run_program(words);
  std::vector<std::vector<std::string>> environments;
  for (int rank = 0; rank < processes; ++rank)
    environments.push_back({"RANK=" + std::to_string(rank),
                            "WORLD_SIZE=" + std::to_string(processes), "MASTER_ADDR=127.0.0.1",
                            "MASTER_PORT=1", "SHOAL_STORE_DIR=" + directory.path()});
  auto results = test::run_programs(words, environments);
  for (std::size_t rank = 1; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].status, 0) << results[rank].err;
    EXPECT_EQ(results[rank].out + results[rank].err, "");
  }
  return results.front();
}

// As scripts read nccl-tests: thirteen columns, or more with -I or -S.
const std::regex kRow(
    R"(^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+([\d.e+]+)\s+([\d.e+]+)\s+([\d.e+]+)\s+(\d+|N/A))"
    R"((?:(?:\s+[\d.e+]+){4})?\s+([\d.e+]+)\s+([\d.e+]+)\s+([\d.e+]+)\s+(\d+|N/A).*$)");

TEST(NcclTestsLines, RunAndAreRead) {
  ASSERT_EQ(kLines.size(), 20);
  for (const Line& line : kLines) {
    SCOPED_TRACE(line.words);
    const auto words = smaller(line.words);
    const ProgramResult result = run(line.processes, words);
    EXPECT_EQ(result.status, 0);
    EXPECT_THAT(result.err, HasSubstr(line.note));
    EXPECT_EQ(std::string(line.note).empty(), result.err.empty()) << result.err;
    int ranks = 0, rows = 0;
    std::string bound, wrong;
    std::istringstream lines(result.out);
    for (std::string text; std::getline(lines, text);) {
      ranks += text.starts_with("#  Rank ") ? 1 : 0;
      if (text.starts_with("# Out of bounds values")) wrong = text.substr(text.find(':') + 2);
      if (text.starts_with("# Avg bus bandwidth")) bound = text.substr(text.find(':') + 2);
      if (text.starts_with("#")) continue;
      std::smatch columns;
      ASSERT_TRUE(std::regex_match(text, columns, kRow)) << text;
      ++rows;
      EXPECT_GT(std::stod(columns[6]), 0) << text;
      const bool checked = std::string(line.words).find("-c 0") == std::string::npos;
      EXPECT_EQ(columns[9], checked ? "0" : "N/A") << text;
    }
    EXPECT_EQ(ranks, line.ranks) << result.out;
    EXPECT_EQ(rows, line.rows) << result.out;
    EXPECT_EQ(wrong, "0 OK");
    EXPECT_GT(std::stod(bound), 0);
    const std::string name = words.front().substr(0, words.front().find("_perf"));
    const std::string ours = name == "alltoall"   ? "all_to_all"
                             : name == "sendrecv" ? "send_recv"
                                                  : name;
    EXPECT_THAT(result.out, HasSubstr("# Collective test starting: " + ours + "_perf\n"));
  }
}

// Widths and names of nccl-tests' table.
TEST(NcclTestsLines, TheTableIsNcclTests) {
  const std::string out =
      run(1, {"all_reduce_perf", "-b", "1M", "-e", "1M", "-n", "2", "-w", "1"}).out;
  const std::string head =
      "\n"
      "#                                                         "
      "     out-of-place                       in-place          \n"
      "#       size         count      type   redop    root     t"
      "ime   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n"
      "#        (B)    (elements)                               ("
      "us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         \n"
      "     1048576        262144     float     sum      -1  ";
  EXPECT_THAT(out, HasSubstr(head));
}

TEST(NcclTestsLines, SaysInOneLineWhyNot) {
  const auto problem = [](const std::string& text) {
    std::istringstream stream("all_reduce_perf " + text);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    const ProgramResult result = run(1, words);
    EXPECT_NE(result.status, 0);
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    return result.err;
  };
  EXPECT_THAT(problem("-D 1 -R 2"), HasSubstr("-D 1 is refused: Shoal has no kernels"));
  EXPECT_THAT(problem("-d uint32"), HasSubstr("Shoal lacks this dtype"));
  EXPECT_THAT(problem("-d int8 -o avg"), HasSubstr("only floating dtypes"));
  EXPECT_THAT(problem("-b 2G -e 1G"), HasSubstr("-b 2147483648 is above -e 1073741824"));
  EXPECT_THAT(problem("-J out.csv"), HasSubstr("only JSON is written"));
  EXPECT_THAT(problem("-g 2 --backend mpi"), HasSubstr("start mpirun -n 2 instead"));
  const auto split = test::run_program({SHOAL_PERF_PROGRAM, "-e", "8", "-n", "1"},
                                       {.environment = {"NCCL_TESTS_SPLIT=MOD 2"}});
  EXPECT_THAT(split.err, HasSubstr("NCCL_TESTS_SPLIT is ignored"));
  const auto no_such = run(1, {"hypercube_perf"});
  EXPECT_THAT(no_such.err, HasSubstr("'hypercube' is not an operation"));
}

TEST(NcclTestsLines, WritesNcclTestsJsonDocument) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path() + "/out.json";
  for (int run_number = 0; run_number < 2; ++run_number) {
    const auto result = run(1, {"all_reduce_perf", "-b", "8", "-e", "64", "-f", "8", "-t", "2",
                                "-n", "4", "-I", "1", "-J", path});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("# Writing JSON output to " + path));
  }
  EXPECT_TRUE(std::filesystem::exists(path + ".0"));  // the first document was not overwritten
  nlohmann::json document = read_json_file(path);
  EXPECT_EQ(document["version"], 3);
  EXPECT_EQ(document["config"]["nthreads"], 2);
  EXPECT_EQ(document["config"]["devices"].size(), 2);
  EXPECT_EQ(document["config"]["devices"][1]["rank"], 1);
  EXPECT_EQ(document["out_of_bounds"]["okay"], "true");
  EXPECT_GT(document["average_bus_bandwidth"]["bandwidth"], 0);
  ASSERT_EQ(document["results"].size(), 2);
  auto& row = document["results"][1];
  EXPECT_EQ(row["size"], 64);
  EXPECT_EQ(row["count"], 16);
  EXPECT_EQ(row["type"], "float");
  EXPECT_EQ(row["redop"], "sum");
  EXPECT_EQ(row["root"], "-1");
  EXPECT_EQ(row["actual_iterations"], 4);
  for (const std::string place : {"out_of_place", "in_place"}) {
    EXPECT_GT(row[place]["time"], 0);
    EXPECT_GT(row[place]["alg_bw"], 0);
    EXPECT_EQ(row[place]["nwrong"], 0);
    EXPECT_EQ(row[place + "_per_iter"]["times_us"].size(), 4);
  }
}

TEST(NcclTestsLines, ReducesSizesToTheMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs more address space";
#endif
  const auto result = test::run_program(
      {"/bin/sh", "-c",
       std::string("ulimit -v 400000; exec ") + SHOAL_PERF_PROGRAM + " -b 8 -e 8G -f 1e9 -n 1"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("Reducing maxBytes to "));
  EXPECT_THAT(result.out, HasSubstr("# Out of bounds values : 0 OK\n"));
}

TEST(NcclTestsLines, WritesCsv) {
  const auto result = run(
      1, {"reduce_perf", "-b", "8", "-e", "8", "-t", "2", "-n", "4", "-F", "csv", "--place", "in"});
  EXPECT_THAT(result.out,
              ::testing::MatchesRegex(
                  "size,count,type,redop,root,out_time_us,out_algbw_GBps,out_busbw_GBps,out_wrong,"
                  "in_time_us,in_algbw_GBps,in_busbw_GBps,in_wrong\n"
                  "8,2,float,sum,0,,,,,[0-9.]+,[0-9.]+,[0-9.]+,0\n"));
}

}  // namespace
}  // namespace shoal
