// SPDX-License-Identifier: GPL-2.0
/*
 * Lab only. PCI functions that say they are something else: in sysfs, in uevents and where drivers are matched. Their
 * config space is not touched, so that a guest sees the truth.
 *
 *   set=ADDRESS=VENDOR:DEVICE[:CLASS][,...]     hex, as in 0000:01:00.0=10de:2230 or 0000:03:10.0=10de:2230:030200
 *
 * Loaded before udev starts; functions that come later are renamed through /sys/module/fakeid/parameters/set.
 */
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/string.h>

static int rename_one(const char *word)
{
	unsigned int domain, bus, slot, function, vendor, device, class;
	struct pci_dev *pdev;
	int found;

	found = sscanf(word, "%x:%x:%x.%x=%x:%x:%x", &domain, &bus, &slot, &function, &vendor, &device, &class);
	if (found < 6)
		return -EINVAL;
	pdev = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	if (!pdev)
		return -ENODEV;
	pdev->vendor = vendor;
	pdev->device = device;
	pdev->subsystem_vendor = vendor;
	if (found == 7)
		pdev->class = class;
	pci_info(pdev, "fakeid: is now [%04x:%04x] class %06x\n", vendor, device, pdev->class);
	kobject_uevent(&pdev->dev.kobj, KOBJ_CHANGE);
	pci_dev_put(pdev);
	return 0;
}

static int set_ids(const char *value, const struct kernel_param *param)
{
	char *copy = kstrdup(value, GFP_KERNEL), *rest = copy, *word;
	int result = copy ? 0 : -ENOMEM;

	while (!result && (word = strsep(&rest, ",\n")))
		if (*word)
			result = rename_one(word);
	kfree(copy);
	return result;
}

static const struct kernel_param_ops set_ops = { .set = set_ids };
module_param_cb(set, &set_ops, NULL, 0200);

static int __init fakeid_init(void)
{
	return 0;
}

static void __exit fakeid_exit(void)
{
}

module_init(fakeid_init);
module_exit(fakeid_exit);
MODULE_DESCRIPTION("lab: PCI functions under other ids");
MODULE_LICENSE("GPL");
