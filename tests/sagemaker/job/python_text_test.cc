#include "shoal/sagemaker/job/python_text.h"

#include <gtest/gtest.h>

namespace shoal::sagemaker {
namespace {

using Json = nlohmann::ordered_json;

TEST(PythonText, WritesJsonAsJsonDumps) {
  EXPECT_EQ(python_json(Json::parse(R"({"b": [1, 2.0, 1e-05, true, null], "a": {}})")),
            R"({"b": [1, 2.0, 1e-05, true, null], "a": {}})");
  EXPECT_EQ(python_json(1e16), "1e+16");
  EXPECT_EQ(python_json(1e15), "1000000000000000.0");
  EXPECT_EQ(python_json(0.0001), "0.0001");
  EXPECT_EQ(python_json(-0.0), "-0.0");
  EXPECT_EQ(python_json("na\xc3\xafve \"x\"\n\x7f"), R"("na\u00efve \"x\"\n\u007f")");
  EXPECT_EQ(python_json("\xf0\x9f\x90\x9f"), R"("\ud83d\udc1f")");
}

TEST(PythonText, SortsKeysInCompactJson) {
  EXPECT_EQ(compact_python_json(Json::parse(R"({"b": [1, 2], "a": {"z": 0.5, "y": "t"}})")),
            R"({"a":{"y":"t","z":0.5},"b":[1,2]})");
}

TEST(PythonText, WritesStrAsPythonDoes) {
  EXPECT_EQ(python_str(Json::parse(R"([1, "a", "it's", "both ' and \"", null, true, 2.0])")),
            R"([1, 'a', "it's", 'both \' and "', None, True, 2.0])");
  EXPECT_EQ(python_str(Json::parse(R"({"k": {"n": false}})")), "{'k': {'n': False}}");
  EXPECT_EQ(python_str("as it is"), "as it is");
}

}  // namespace
}  // namespace shoal::sagemaker
