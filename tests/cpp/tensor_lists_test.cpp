#include "call/tensor_lists.h"

#include <gtest/gtest.h>

#include "python_values.h"

namespace dutyfree::call {
namespace {

using testing::evaluate;
using testing::repr;
using testing::tensor;

PyRef list_of_tensors(int count) {
  PyRef list = PyRef::steal(PyList_New(0));
  for (int index = 0; index < count; ++index) {
    PyList_Append(list.get(), tensor().get());
  }
  return list;
}

// A value, a list of two, an empty list.
TensorLists example() {
  TensorLists lists;
  EXPECT_TRUE(lists.add(Py_None) && lists.add(list_of_tensors(2).get()) && lists.add(list_of_tensors(0).get()));
  return lists;
}

// The same with numbers in the place of tensors, which nothing but `add` looks at.
std::string unflattened(const TensorLists& lists, const char* flat) {
  const PyRef values = evaluate(flat);
  return repr(lists.unflatten(&PyTuple_GET_ITEM(values.get(), 0)).get());
}

// The flat gradients, "error" with a Python error set, or "refused" without one.
std::string flat_gradients(const TensorLists& lists, PyRef gradients) {
  const PyRef flat = lists.flatten_gradients(gradients.get(), Py_None);
  if (flat) {
    return repr(flat.get());
  }
  const bool error = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  return error ? "error" : "refused";
}

TEST(TensorListsTest, CountsFlatValues) {
  EXPECT_EQ(example().flat_size(), 3);
  EXPECT_EQ(TensorLists().flat_size(), 0);
}

TEST(TensorListsTest, PutsListsBackInTheirPlaces) {
  EXPECT_EQ(unflattened(example(), "(1, 2, 3)"), "(1, [2, 3], [])");
  EXPECT_EQ(unflattened(TensorLists(), "()"), "()");
}

TEST(TensorListsTest, HoldsMoreValuesThanFitInTheObject) {
  TensorLists lists;
  for (int count = 0; count < 9; ++count) {
    EXPECT_TRUE(lists.add(Py_None));
  }
  EXPECT_EQ(unflattened(lists, "tuple(range(9))"), "(0, 1, 2, 3, 4, 5, 6, 7, 8)");
}

TEST(TensorListsTest, FlattensAResult) {
  const PyRef result = evaluate("(1, [2, 3], [])");
  EXPECT_EQ(repr(example().flatten(result.get()).get()), "(1, 2, 3)");
  EXPECT_EQ(repr(example().flatten(result.get(), Py_None).get()), "(1, 2, 3, None)");
}

TEST(TensorListsTest, RefusesAResultWhoseListChangedItsLength) {
  const PyRef result = evaluate("(1, [2, 3, 4], [])");
  EXPECT_FALSE(example().flatten(result.get()));
  EXPECT_TRUE(PyErr_ExceptionMatches(PyExc_RuntimeError));
  PyErr_Clear();
}

TEST(TensorListsTest, FlattensGradientsAndAddsNone) {
  EXPECT_EQ(flat_gradients(example(), evaluate("(1, [None, None], [])")), "(1, None, None, None)");
}

TEST(TensorListsTest, RefusesGradientsOfAnotherStructure) {
  for (const char* gradients :
       {"()", "(1, [None], [])", "(1, None, [])", "([], [None, None], [])", "((), [None, None], [])",
        "(1, (None, None), [])", "(1, [None, 2], [])", "(1, [None, None], [], 1)"}) {
    EXPECT_EQ(flat_gradients(example(), evaluate(gradients)), "refused") << gradients;
  }
}

TEST(TensorListsTest, HandsUpWhatLookingAtAGradientRaises) {
  EXPECT_EQ(flat_gradients(example(), evaluate("(1, [None, __import__('weakref').proxy(type('T', (), {})())], [])")),
            "error");
}

TEST(TensorListsTest, KnowsListsOfTensors) {
  TensorLists lists;
  const PyRef list = list_of_tensors(0);
  EXPECT_TRUE(lists.add(list.get()));
  PyList_Append(list.get(), tensor().get());
  EXPECT_TRUE(lists.add(list.get()));
  PyList_Append(list.get(), Py_None);
  EXPECT_TRUE(lists.add(list.get()) && lists.add(evaluate("()").get()));
  EXPECT_TRUE(lists.is_list(0));
  EXPECT_TRUE(lists.is_list(1));
  EXPECT_FALSE(lists.is_list(2));
  EXPECT_FALSE(lists.is_list(3));
}

}  // namespace
}  // namespace dutyfree::call
