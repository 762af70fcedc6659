// Runs the tests of one source out of a program that holds those of a whole folder.
//
//   tests_mp_server --source=tests/mp_server/store/quota_test.cc [gtest flags]
//
// Without --source all tests run. Exit code 2 when the source has no test, so that a CTest entry
// that runs nothing fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view kFlag = "--source=";

// The names of all tests whose file ends with `source`, as gtest's filter takes them.
std::string FilterFor(std::string_view source) {
  std::string filter;
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *tests.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (!std::string_view(test.file()).ends_with(source)) continue;
      filter.append(filter.empty() ? "" : ":").append(suite.name()).append(".").append(test.name());
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kFlag)) continue;
    const std::string filter = FilterFor(argument.substr(kFlag.size()));
    if (filter.empty()) {
      std::fprintf(stderr, "no test of this program is in %s\n", argument.data() + kFlag.size());
      return 2;
    }
    // A filter that is given by hand counts instead.
    if (testing::GTEST_FLAG(filter) == "*") testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
