// Host decisions about GPU code: which architectures a GPU can run, and how attention by products
// is split into pieces.
#include "shoal/kernels/cuda/architectures.h"

#include <gmock/gmock.h>

#include "shoal/kernels/cuda/attention_pieces.h"

namespace shoal::kernels {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CudaArchitectures, MachineCodePtxAndSingleChipsAreDistinguished) {
  constexpr const char* kUsual = "80-real;90a-real";
  for (const int capability : {80, 86, 89, 90}) EXPECT_TRUE(runs_on(kUsual, capability));
  for (const int capability : {60, 70, 75, 100, 120}) EXPECT_FALSE(runs_on(kUsual, capability));
  for (const int capability : {70, 72, 75}) EXPECT_TRUE(runs_on("70-real;80-real", capability));
  EXPECT_TRUE(runs_on("70-real 80-real", 89)) << "architectures as doctor lists them";
  EXPECT_FALSE(runs_on("75-real", 70));
  EXPECT_TRUE(runs_on("70-virtual", 120)) << "the driver compiles PTX";
  EXPECT_FALSE(runs_on("70-virtual", 61));
  EXPECT_TRUE(runs_on("70", 90)) << "70 includes machine code and PTX";
  EXPECT_FALSE(runs_on("90a", 100));
  EXPECT_TRUE(runs_on("100f-real", 103));
  EXPECT_FALSE(runs_on("", 80));
  EXPECT_TRUE(runs_on("all-major", 70)) << "only the driver can tell";
}

TEST(CudaArchitectures, TheSuggestedFlagIsSufficient) {
  for (const int capability : {70, 75, 80, 86, 90, 100, 120}) {
    const std::string flag = build_flag_for(capability);
    const std::string value = flag.substr(flag.find('=') + 1);
    EXPECT_TRUE(runs_on(value.substr(0, value.find(' ')), capability)) << flag;
  }
  EXPECT_THAT(build_flag_for(70), HasSubstr("CUDA 12"));
  EXPECT_THAT(build_flag_for(80), Not(HasSubstr("CUDA 12")));
}

AttentionShape shape(std::int64_t batch, std::int64_t heads, std::int64_t length) {
  AttentionShape s;
  s.batch = batch;
  s.heads = heads;
  s.query_length = s.key_length = length;
  return s;
}

TEST(AttentionPieces, FitIntoTheWorkspace) {
  constexpr std::int64_t kMiB = 1 << 20;
  // 8 x 12 x 1024 x 1024 scores of 12 bytes are 1152 MiB: 144 MiB a sample, 12 MiB a head.
  const AttentionShape s = shape(8, 12, 1024);
  EXPECT_EQ(score_piece(s, 12, 0), (ScorePiece{8, 12, 1024}));
  EXPECT_EQ(score_piece(s, 12, 1152 * kMiB), (ScorePiece{8, 12, 1024}));
  EXPECT_EQ(score_piece(s, 12, 1024 * kMiB), (ScorePiece{7, 12, 1024}));
  EXPECT_EQ(score_piece(s, 12, 144 * kMiB), (ScorePiece{1, 12, 1024}));
  EXPECT_EQ(score_piece(s, 12, 100 * kMiB), (ScorePiece{1, 8, 1024}));
  EXPECT_EQ(score_piece(s, 12, 12 * kMiB), (ScorePiece{1, 1, 1024}));
  EXPECT_EQ(score_piece(s, 12, 5 * kMiB), (ScorePiece{1, 1, 384}));
  EXPECT_EQ(score_piece(s, 12, 1), (ScorePiece{1, 1, kLeastQueries}));
  EXPECT_EQ(score_piece(shape(2, 2, 20), 12, 1), (ScorePiece{1, 1, 20}));
  for (const std::int64_t length : {0, 1, 63, 64, 65, 1000})
    for (const std::int64_t workspace : {1, 4096, 1 << 16, 1 << 22, 1 << 26}) {
      const AttentionShape any = shape(5, 3, length);
      const ScorePiece piece = score_piece(any, 6, workspace);
      const std::int64_t bytes =
          piece.batch * piece.heads * piece.queries * score_leading(length) * 6;
      EXPECT_TRUE(bytes <= workspace || piece.queries <= kLeastQueries) << length;
      EXPECT_GE(piece.batch * piece.heads, 1);
      EXPECT_EQ(score_leading(length) % 8, 0);
      EXPECT_GE(score_leading(length), length);
    }
}

}  // namespace
}  // namespace shoal::kernels
