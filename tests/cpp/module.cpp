// Runs the GoogleTest tests from Python, see tests/test_cpp.py.
#include <gtest/gtest.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

namespace {

std::vector<std::string> names() {
  std::vector<std::string> result;
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  for (int s = 0; s < tests.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *tests.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      result.push_back(std::string(suite.name()) + "." + suite.GetTestInfo(t)->name());
    }
  }
  return result;
}

// Holds the GIL throughout, as the code under test does when it is called from Python.
int run(const std::string& filter) {
  GTEST_FLAG_SET(filter, filter);
  return RUN_ALL_TESTS();
}

}  // namespace

PYBIND11_MODULE(dutyfree_cpp_tests, module) {
  int argument_count = 1;
  char program_name[] = "dutyfree_cpp_tests";
  char* arguments[] = {program_name, nullptr};
  testing::InitGoogleTest(&argument_count, arguments);
  module.def("names", &names);
  module.def("run", &run);
}
